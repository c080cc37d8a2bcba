"""Produce requests of the usual kind to a partition with several replicas: appended on the fast path, answered by the commit.

Their answer is made when the records are appended, and waits in its slot. A commit marks the slots of all requests that it reaches.
The connections are told once, at the end of the turn of the loop, so that the answers of a commit leave each in one write.

Tests: ``tests/handlers/test_acknowledging.py``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from app.core.errors import ErrorCode, FirnError, RequestRejected
from app.handlers.clients.client import RequestFields
from app.handlers.produce.produce import encode_failures, failure
from app.replication.commits import Waiter
from app.transport.core import Slot

if TYPE_CHECKING:
    from app.handlers.clients.client import Client
    from app.handlers.clients.produce_shape import ProduceShape

OUT_OF_TIME: Final = "The records are not stored yet."


class ProducedSlot(Slot, Waiter):
    """The place of an answer that waits for a commit."""

    __slots__ = ("connection", "correlation_id", "due_s", "offset_end", "shape", "throttle_time_ms")

    # The fields of both parents are set here: a further call for each would add a tenth to the CPU of a request.
    def __init__(
        self,
        connection: Client,
        shape: ProduceShape,
        correlation_id: int,
        throttle_time_ms: int,
        offset_end: int,
        answer: bytes,
    ) -> None:
        self.done = False
        self.parts = answer
        self.meter = connection.server.produce_meter
        self.started_s = started_s = connection.started_s
        self.stops_parsing = False
        self.offset_end = offset_end
        self.due_s = started_s + shape.timeout_s
        self.connection = connection
        self.shape = shape
        self.correlation_id = correlation_id
        self.throttle_time_ms = throttle_time_ms

    def committed(self) -> None:
        self.done = True
        self.connection.server.answers.due(self.connection)

    def failed(self, error: FirnError) -> None:
        context = self.connection.context
        topic, index = self.shape.topic_partition
        asked = RequestFields(self.shape.version, self.correlation_id, self.throttle_time_ms)
        self.parts = encode_failures(self.connection, asked, [(topic, [failure(context, None, index, error)])])
        self.committed()

    def out_of_time(self) -> None:
        self.failed(RequestRejected(ErrorCode.REQUEST_TIMED_OUT, OUT_OF_TIME))


def wait_for_commit(
    connection: Client,
    shape: ProduceShape,
    correlation_id: int,
    offset_end: int,
    answer: bytes,
    throttle_time_ms: int,
) -> None:
    """Send the answer to records that were appended up to ``offset_end``, which are not committed yet, once they are."""
    partition = shape.partition
    assert partition is not None
    slot = ProducedSlot(connection, shape, correlation_id, throttle_time_ms, offset_end, answer)
    connection.keep_slot(slot)
    partition.wait_committed(slot)
