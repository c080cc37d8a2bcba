"""The clients that push metrics: the wanted metrics of each, the times of its pushes, and its time series (KIP-714). Pure.

As in Apache Kafka, a client may push once in its interval, a change of the subscriptions makes a client ask again, and any broker
can answer for a client that it has not seen: the id of a subscription follows from the wanted metrics and the client's id.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import MappingProxyType
from typing import Final, NamedTuple
from uuid import UUID

import crc32c

from app.configs.client_metrics import ALL_METRICS, Client, Subscription, Wanted, subscription_of, wanted_of
from app.core.errors import ErrorCode, RequestRejected
from app.core.metrics import Labels, SampleBlock
from app.core.turns import Steps
from app.telemetry.series import Known, block_of, take

CLIENTS_MAX: Final = 10_000
"""Limit of known clients. A further one replaces the one that was silent longest."""
FORGOTTEN_AFTER_S: Final = 60.0
"""A silent client is forgotten after this time, or after three intervals if they are longer."""
INTERVALS_KEPT: Final = 3
LABEL_CHARACTERS_MAX: Final = 256
CODECS: Final = (4, 3, 1, 2)
"""The codecs that clients may use, the preferred one first: zstd, lz4, gzip, snappy."""
CODEC_MAX: Final = 4
RESERVED_IDS: Final = frozenset({UUID(int=0), UUID(int=1)})
ASKED_AGAIN_AFTER: Final = (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
"""Errors after which a client asks again at once."""
ACCEPTED, THROTTLED, REFUSED = "accepted", "throttled", "refused"
NO_CONFIGS: Final[Mapping[str, Mapping[str, str]]] = MappingProxyType({})


class Asked(NamedTuple):
    """The subscription of a client."""

    subscription_id: int
    wanted: Wanted


class Push(NamedTuple):
    """The head of a PushTelemetry request."""

    subscription_id: int
    codec: int
    size_bytes: int
    """Before it is decompressed."""
    terminating: bool
    """Whether the client says that it ends."""


class ClientState:
    """One client."""

    __slots__ = ("_series", "asked", "ended", "error", "got_s", "heard_s", "labels", "pushed_s", "shown", "version")

    def __init__(self, asked: Asked, version: int, labels: Labels) -> None:
        self.asked = asked
        self.version = version
        """Of the subscriptions that ``asked`` follows from."""
        self.labels = labels
        self.got_s = -float("inf")
        """When it last asked for its subscription."""
        self.pushed_s = -float("inf")
        self.heard_s = 0.0
        self.ended = False
        self.error = ErrorCode.NONE
        """Of its last push."""
        self.series = {}

    @property
    def series(self) -> Known:
        """Those of its last push. They are replaced as a whole."""
        return self._series

    @series.setter
    def series(self, series: Known) -> None:
        self._series = series
        self.shown = block_of(series, self.labels)


class PushingClients:
    """The clients that this broker knows. ``now_s`` is the time of one clock that never goes back."""

    def __init__(self, *, bytes_max: int, series_max: int, client_series_max: int) -> None:
        self.bytes_max = bytes_max
        self.series_max = series_max
        self.client_series_max = client_series_max
        self.series_count = 0
        """Of all clients."""
        self.dropped_points = 0
        self.pushes = {ACCEPTED: 0, THROTTLED: 0, REFUSED: 0}
        self._clients: OrderedDict[UUID, ClientState] = OrderedDict()
        """The one that was heard last is last."""
        self._configs: Mapping[str, Mapping[str, str]] = NO_CONFIGS
        self._subscriptions: Sequence[Subscription] = ()
        self._version = 0

    def __len__(self) -> int:
        return len(self._clients)

    def following(self, configs: Mapping[str, Mapping[str, str]]) -> Steps[None]:
        """Take the settings of all subscriptions, in steps. The same mapping as before changes nothing."""
        if configs is self._configs:
            return
        subscriptions = []
        for _, overrides in sorted(configs.items()):
            # Settings that an earlier version accepted, and that this one does not, match no client.
            with suppress(RequestRejected):
                subscriptions.append(subscription_of(overrides))
            yield
        self._configs, self._subscriptions = configs, subscriptions
        self._version += 1

    def subscribe(self, client: Client, instance_id: UUID, now_s: float) -> Asked:
        """Return the metrics that a client is to push.

        Raises: RequestRejected THROTTLING_QUOTA_EXCEEDED if it asks again too soon.
        """
        state = self._heard(client, instance_id, now_s)
        interval_s = state.asked.wanted.interval_ms / 1000
        soon = now_s - max(state.got_s, state.pushed_s) < interval_s
        if soon and state.error not in ASKED_AGAIN_AFTER:
            self.pushes[THROTTLED] += 1
            raise _too_soon(instance_id)
        state.got_s, state.error = now_s, ErrorCode.NONE
        return state.asked

    def admit(self, client: Client, instance_id: UUID, push: Push, now_s: float) -> ClientState:
        """Check a push before its metrics are read. Returns: the client, for ``taking`` or ``failed``.

        Raises: RequestRejected INVALID_REQUEST, THROTTLING_QUOTA_EXCEEDED, UNKNOWN_SUBSCRIPTION_ID, UNSUPPORTED_COMPRESSION_TYPE,
        TELEMETRY_TOO_LARGE.
        """
        if instance_id in RESERVED_IDS:
            self.pushes[REFUSED] += 1
            raise RequestRejected(
                ErrorCode.INVALID_REQUEST, f"{instance_id} is a reserved id. Send the id of the client instance."
            )
        state = self._heard(client, instance_id, now_s)
        try:
            self._check(state, instance_id, push, now_s)
        except RequestRejected as error:
            state.error = error.code
            self.pushes[THROTTLED if error.code is ErrorCode.THROTTLING_QUOTA_EXCEEDED else REFUSED] += 1
            raise
        finally:
            state.ended = push.terminating
        return state

    def _check(self, state: ClientState, instance_id: UUID, push: Push, now_s: float) -> None:
        """Raises: as ``admit``."""
        if state.ended:
            raise RequestRejected(
                ErrorCode.INVALID_REQUEST, f"Client instance {instance_id} has already sent its last push."
            )
        due = state.got_s > state.pushed_s or now_s - state.pushed_s >= state.asked.wanted.interval_ms / 1000
        if due:
            state.pushed_s = now_s
        elif not push.terminating:
            raise _too_soon(instance_id)
        if push.subscription_id != state.asked.subscription_id:
            raise RequestRejected(
                ErrorCode.UNKNOWN_SUBSCRIPTION_ID,
                f"Client instance {instance_id} has no subscription {push.subscription_id}. Get the subscription again.",
            )
        if not 0 <= push.codec <= CODEC_MAX:
            raise RequestRejected(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"There is no compression type {push.codec}.")
        if push.size_bytes > self.bytes_max:
            raise RequestRejected(
                ErrorCode.TELEMETRY_TOO_LARGE,
                f"The metrics have {push.size_bytes} bytes, of {self.bytes_max} at most (telemetry.max.bytes).",
            )

    def taking(self, state: ClientState, metrics: bytes) -> Steps[None]:
        """Take the metrics of a push that was admitted, in steps. They replace those of the push before.

        One push is taken at a time. Raises: ProtocolError if the bytes are no metrics; the earlier ones stay then.
        """
        wanted = state.asked.wanted.metrics
        prefixes = None if wanted == (ALL_METRICS,) else tuple([one.encode() for one in wanted])
        room = self.series_max - self.series_count + len(state.series)
        for taken in take(metrics, state.series, prefixes, min(self.client_series_max, room)):
            if taken is None:
                yield
                continue
            self.dropped_points += taken.dropped
            if state.heard_s < 0:  # forgotten meanwhile
                return
            self.series_count += len(taken.series) - len(state.series)
            state.series = taken.series
        state.error = ErrorCode.NONE
        self.pushes[ACCEPTED] += 1

    def failed(self, state: ClientState, code: ErrorCode) -> None:
        """Note the error of an admitted push whose metrics were not taken."""
        state.error = code
        self.pushes[THROTTLED if code is ErrorCode.THROTTLING_QUOTA_EXCEEDED else REFUSED] += 1

    def expire(self, now_s: float) -> None:
        """Forget clients that were not heard for three intervals."""
        for instance_id, state in list(self._clients.items()):
            kept_s = max(FORGOTTEN_AFTER_S, INTERVALS_KEPT * state.asked.wanted.interval_ms / 1000)
            if now_s - state.heard_s > kept_s:
                self._forget(instance_id)

    def shown(self) -> Iterator[SampleBlock]:
        """The series of each client. Clients may come and go between two of them."""
        for instance_id in list(self._clients):
            state = self._clients.get(instance_id)
            if state is not None:
                yield state.shown

    def _heard(self, client: Client, instance_id: UUID, now_s: float) -> ClientState:
        """The state of a client that asks or pushes. It is new if the client is, or if the subscriptions have changed."""
        state = self._clients.get(instance_id)
        if state is None or state.version != self._version:
            asked = wanted_of(self._subscriptions, client)
            fresh = ClientState(Asked(_subscription_id(asked, instance_id), asked), self._version, _labels_of(client))
            if state is not None:
                fresh.series, state.heard_s = state.series, -1.0
            elif len(self._clients) >= CLIENTS_MAX:
                self._forget(next(iter(self._clients)))
            state = self._clients[instance_id] = fresh
        state.heard_s = now_s
        self._clients.move_to_end(instance_id)
        return state

    def _forget(self, instance_id: UUID) -> None:
        state = self._clients.pop(instance_id)
        state.heard_s = -1.0
        self.series_count -= len(state.series)


def _too_soon(instance_id: UUID) -> RequestRejected:
    return RequestRejected(
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        f"Client instance {instance_id} asks again before its interval is over. Wait for the push interval.",
    )


def _subscription_id(wanted: Wanted, instance_id: UUID) -> int:
    """A number that is the same on all brokers, and another one for other metrics or another interval."""
    checksum: int = crc32c.crc32c(f"{list(wanted.metrics)}{wanted.interval_ms}".encode())
    halves = (instance_id.int >> 64) ^ (instance_id.int & 0xFFFF_FFFF_FFFF_FFFF)
    number = checksum ^ (halves >> 32) ^ (halves & 0xFFFF_FFFF)
    return number - (1 << 32) if number >> 31 else number


def _labels_of(client: Client) -> Labels:
    return (
        ("client_id", client.client_id[:LABEL_CHARACTERS_MAX]),
        ("client_instance_id", client.instance_id),
        ("client_software_name", client.software_name[:LABEL_CHARACTERS_MAX]),
    )
