"""Learns the bytes that repeat from one Fetch request to the next, so that most requests need not be decoded.

A consumer that reads one partition without a fetch session (librdkafka has none) sends the same in each request, except for the
correlation id and the offset. A ``FetchShape`` is learnt from a request that was decoded in full. A later request with the same
bytes around its offset means the same. Every other request is decoded in full.

As with ``ProduceShape``, only the full decoder knows the layout. A shape finds the place of the offset by its bytes. It is learnt
only if these bytes are in one place of the request.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Final

from app.handlers.state.fetch_fan_out import FetchKind
from app.handlers.state.fetch_sessions import FINAL_EPOCH, NO_SESSION

if TYPE_CHECKING:
    from app.handlers.policy.callers import Rights
    from app.handlers.state.fetch_sessions import CachedPartition, FetchPlan
    from app.wire.fetch import FetchRequest

CORRELATION_END: Final = 8
"""A frame begins with the API key, its version and the correlation id."""
INT64: Final = Struct(">q")
SHAPE_BYTES_MAX: Final = 1024
"""A longer request is not remembered."""


class FetchShape:
    """One kind of a consumer's requests on one connection. The connection has at most one of them under way."""

    __slots__ = (
        "_frame_bytes",
        "_offset_at",
        "_prefix",
        "_suffix",
        "client_id",
        "kind",
        "partitions",
        "plan",
        "request",
        "version",
    )

    def __init__(
        self,
        rights: Rights,
        version: int,
        client_id: str | None,
        frame: bytes,
        offset_at: int,
        request: FetchRequest,
        plan: FetchPlan,
        partitions: list[CachedPartition],
        bytes_max: int,
    ) -> None:
        self.version = version
        self.client_id = client_id
        self._frame_bytes = len(frame)
        self._offset_at = offset_at
        self._prefix = frame[CORRELATION_END:offset_at]
        self._suffix = frame[offset_at + INT64.size :]
        self.request = request
        """The request that all of them make, except for the offset."""
        self.plan = plan
        self.partitions = partitions
        """The one partition, with the offset of the newest of them."""
        (one,) = partitions
        self.kind: FetchKind | None = None
        """The kind under which they share responses with other consumers; None if each is answered for itself."""
        if one.last_fetched_epoch < 0:
            self.kind = FetchKind(
                rights,
                version,
                one.topic,
                one.partition,
                min(one.max_bytes, bytes_max),
                request.min_bytes,
                request.isolation_level,
                one.current_leader_epoch,
                request.rack_id,
            )

    def fits(self, version: int, frame: memoryview) -> bool:
        """Whether a request is of this kind; ``partitions`` has its offset then."""
        if len(frame) != self._frame_bytes or version != self.version:
            return False
        whole = bytes(frame)
        if not (whole.startswith(self._prefix, CORRELATION_END) and whole.endswith(self._suffix)):
            return False
        (self.partitions[0].fetch_offset,) = INT64.unpack_from(whole, self._offset_at)
        return True


def learn(
    rights: Rights,
    version: int,
    client_id: str | None,
    frame: memoryview,
    request: FetchRequest,
    plan: FetchPlan,
    partitions: list[CachedPartition],
    bytes_max: int,
) -> FetchShape | None:
    """The shape of a consumer's decoded request, whose answer has at most ``bytes_max`` of records. None if a comparison of
    bytes cannot recognise such requests."""
    if (
        request.session_id != NO_SESSION
        or request.session_epoch != FINAL_EPOCH
        or len(partitions) != 1
        or sum(len(asked) for _, asked in request.topics) != 1
        or len(frame) > SHAPE_BYTES_MAX
    ):
        return None
    whole = bytes(frame)
    offset = INT64.pack(partitions[0].fetch_offset)
    offset_at = whole.find(offset, CORRELATION_END)
    if whole.rfind(offset, CORRELATION_END) != offset_at:
        return None
    return FetchShape(rights, version, client_id, whole, offset_at, request, plan, partitions, bytes_max)
