"""Fetch (key 1): the records of partitions from an offset on, as file ranges that the connection sends.

One attempt looks at every partition in order and collects ranges within the byte limits. The first batch of the first partition
that has any is answered whole, however large it is (KIP-74). If that is enough, or if waiting would not help, the answer goes out
at once. Otherwise the request is parked. A parked request has no task. It has a waiter on each partition's log and on each remote
chunk that was asked for, and one timer. Each of them causes a new attempt, at most one per turn of the loop.

Offsets below the local log come from the object store through the remote reader. The response has the chunks that the reader holds.
Missing chunks are downloaded, and the download is never cancelled, because the next request can use them too. A request waits for
them at most ``remote.fetch.max.wait.ms`` after it first asked for them (KIP-1018).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple

from app.core.errors import (
    ErrorCode,
    FirnError,
    ProtocolError,
    RequestRejected,
    copy_of,
    kafka_code,
    without_frames,
)
from app.core.seams import shared_wait_s
from app.core.turns import Portion, slices
from app.core.units import BrokerId, LeaderEpoch, Offset
from app.handlers.base.authorising import denial, may
from app.handlers.base.partitions import check_epoch, hint, node_endpoints, topic_name
from app.handlers.clients.client import RequestFields
from app.handlers.clients.fetch_shape import learn
from app.handlers.clients.serving import request_of, spawn_told
from app.handlers.fetch.fetch_long import (
    LONG_FRAME_BYTES,
    LONG_PARTITIONS,
    LOOKED_AT_ONCE,
    decoded,
    has_left,
    serve_long,
)
from app.handlers.fetch.followers import (
    check_follower,
    compare,
    find_follower,
    moves_wait_ms,
    note_position,
    settle,
    share_of_moves,
)
from app.handlers.fetch.followers import read as read_for_follower
from app.handlers.state.fetch_fan_out import SharedAnswer
from app.handlers.state.fetch_sessions import AskedPartition, CachedPartition, FetchPlan, FetchSession
from app.handlers.state.parked_followers import RESTLESS_MS
from app.hot.reads import FileRange, PageMiss
from app.replication.reading import Awaited
from app.replication.throttle import UNLIMITED
from app.security.acls import CLUSTER_NAME, Operation, ResourceType
from app.security.noting import Resource
from app.wire.fetch import (
    ANY_REPLICA,
    ENDPOINTS,
    TOPIC_IDS,
    VERSION_FIRST,
    VERSION_LAST,
    FetchRequest,
    PartitionData,
    RecordsRef,
    decode_fetch,
    encode_fetch_response,
)
from app.wire.header import parse_request_header

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from app.handlers.base.context import Context, Request
    from app.handlers.clients.client import Client
    from app.handlers.fetch.followers import Follower
    from app.handlers.policy.callers import Caller
    from app.handlers.state.fetch_fan_out import FanOut, FetchKind
    from app.hot.log import PartitionLog
    from app.replication.partition import Partition
    from app.replication.reading import PartitionRead
    from app.transport.core import Slot
    from app.transport.sending import Part, Parts, SendableRange
    from app.wire.fetch import FetchPartition
    from app.wire.produce import TopicRef

FETCH: Final = 1
MISS_WAIT_MS: Final = 500
"""How long a Fetch waits for its own disk even if it does not want to wait for new records."""
READ_COMMITTED: Final = 1
MOVES_AT_ONCE: Final = 2
"""Partitions that a reassignment adds, looked at for one response while it has a limit for them (V9)."""
READING: Final = "reading"
"""The name of this work in log lines about faults."""


class Found(NamedTuple):
    """The result of one attempt for one partition."""

    cached: CachedPartition
    error: ErrorCode = ErrorCode.NONE
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    ranges: Sequence[SendableRange] = ()
    record_bytes: int = 0
    offset_span: int = 0
    """Offsets from the requested one to the end of the ranges: the number of records that the client gets."""
    aborted: Sequence[tuple[int, int]] | None = None
    diverging: tuple[int, int] | None = None
    current_leader: tuple[int, int] | None = None
    log: PartitionLog | None = None
    """The log of the records."""
    preferred_replica: int = -1
    """Where the consumer should read instead (KIP-392)."""
    throttled: bool = False
    """Whether the records count for the throttle of replication."""


class Attempt:
    """One look at all partitions of a request."""

    __slots__ = (
        "at_once",
        "awaits_store",
        "client",
        "cold_bytes",
        "denied",
        "follower",
        "found",
        "logs",
        "misses",
        "moves_left",
        "now_ms",
        "offset_span",
        "out_of_time",
        "record_bytes",
        "remote_waits",
        "replays",
        "shareable",
    )

    def __init__(self, client: Client, out_of_time: bool) -> None:
        self.client = client
        self.follower: Follower | None = None
        """The broker that asks, if it was found to be one."""
        self.found: list[Found] = []
        self.logs: list[PartitionLog] = []
        """Logs whose next appends could add to the answer."""
        self.misses: list[PageMiss] = []
        """Bytes that must come from the disk before their partition can be looked at."""
        self.remote_waits: list[Callable[[Callable[[], None]], Callable[[], None]]] = []
        """Each calls back once, when it is worth looking again. It returns a function that cancels that."""
        self.awaits_store = False
        """Whether bytes that were requested from the object store are not here yet."""
        self.out_of_time = out_of_time
        self.replays: bool | None = None
        """Whether the tier may be read in this attempt; None until ``turn`` decides it."""
        self.now_ms = 0
        """Loop time in milliseconds of an attempt for a follower."""
        self.moves_left: int | None = None
        """Bytes that are left for replicas which a reassignment adds; None: no limit (V9)."""
        self.record_bytes = 0
        self.cold_bytes = 0
        """Bytes of reads that began in the object store."""
        self.offset_span = 0
        self.shareable: PartitionLog | None = None
        """The log of the last records found, if other consumers will find the same ones: committed, local, up to the byte limit."""
        self.denied: dict[Resource, None] | None = None
        """Topics that the caller may not read. With any, the response goes out at once."""
        self.at_once = False
        """Waiting would not help: the answer has an error or a divergence, or is as long as it may be."""

    def turn(self) -> Awaited | None:
        """Return None if the tier may be read in this attempt. Otherwise return the wait for this client's turn to read it."""
        replays = self.client.context.replays
        if self.replays is None:
            self.replays = self.out_of_time or replays.may_go_on(self.client)
        return None if self.replays else Awaited(partial(replays.wait, self.client), False)

    def deny(self, operation: Operation, kind: ResourceType, name: str) -> None:
        """The caller may not do this."""
        if self.denied is None:
            self.denied = {}
        self.denied[Resource(operation.name, kind.name, name)] = None

    def tell_denied(self, client_id: str | None, correlation_id: int) -> None:
        """Write the refusals to the audit log, if there are any."""
        audit = self.client.context.audit
        if self.denied and audit is not None:
            audit.refused(self.client.caller, FETCH, client_id, correlation_id, self.denied)

    def note_end(self, read: PartitionRead) -> None:
        """Note why a read of one partition ended before its limits."""
        if read.is_cut:
            self.at_once = True
        match read.lacks:
            case PageMiss() as miss:
                self.misses.append(miss)
            case Awaited() as awaited:
                self.remote_waits.append(awaited.add)
                self.awaits_store = self.awaits_store or awaited.of_store
            case None:
                pass

    def release(self) -> None:
        for one in self.found:
            for part in one.ranges:
                part.release()


def serve_fetch(connection: Client, version: int, correlation_id: int, frame: memoryview) -> Parts:
    """Answer a Fetch, or park it.

    Returns: the response, or None if it comes through a slot.
    Raises: ProtocolError for a frame that is no Fetch request of a served version.
    """
    if not VERSION_FIRST <= version <= VERSION_LAST:
        raise ProtocolError(f"Version {version} of Fetch is not served.", ErrorCode.UNSUPPORTED_VERSION)
    context = connection.context
    sampler = context.sampler
    chosen = sampler is not None and sampler.take(1)
    shape = connection.fetch_shape
    if shape is not None and shape.fits(version, frame):
        request, plan, partitions_asked = shape.request, shape.plan, shape.partitions
        if chosen:
            tell_fetched(connection, shape.client_id, correlation_id, request, partitions_asked)
        if shape.kind is not None:
            offset = partitions_asked[0].fetch_offset
            shared = context.fan_out.find(context.partitions, shape.kind, offset, connection.server.loop.time())
            if shared is not None:
                connection.replaying = False
                throttle_time_ms = connection.charge(shape.client_id, FETCH, shared.length)
                if context.metrics.zones is not None:
                    context.metrics.zones.consumed(shape.client_id, request.rack_id, shared.length)
                return again(context, correlation_id, shared, throttle_time_ms)
        client_id = shape.client_id
    else:
        header = parse_request_header(frame)
        client_id = header.client_id
        if len(frame) > LONG_FRAME_BYTES:
            slot = connection.open_slot(connection.server.metrics.meter(FETCH), stops_parsing=True)
            body = bytes(frame[header.body_start :])
            asked = RequestFields(version, correlation_id)
            noted = request_of(connection, asked, FETCH, client_id)
            noted.is_free = None
            spawn_told(connection, noted, serve_long_frame(connection, slot, asked, noted, body, chosen=chosen))
            return None
        request = decode_fetch(version, frame[header.body_start :])
        plan = plan_of(context, connection.caller, version, request)
        if plan.error:
            return unwrap(encode_fetch_response(version, correlation_id, [], error_code=plan.error))
        partitions_asked = list(plan.partitions) if plan.followed is None else []
        if chosen:
            tell_fetched(connection, client_id, correlation_id, request, partitions_asked)
        shape = None
    max_bytes = min(request.max_bytes, context.config.fetch_max_bytes)
    if context.quotas is not None and request.replica_id < 0:
        share_bytes = context.quotas.fetch_bytes_max(connection.caller, client_id)
        if share_bytes is not None:
            max_bytes = min(max_bytes, share_bytes)
    if len(partitions_asked) > LONG_PARTITIONS and request.replica_id < 0:
        slot = connection.open_slot(connection.server.metrics.meter(FETCH), stops_parsing=True)
        connection.fetch_shape = None
        asked = RequestFields(version, correlation_id)
        work = look_in_portions(connection, slot, asked, client_id, request, plan, partitions_asked, max_bytes)
        spawn_told(connection, request_of(connection, asked, FETCH, client_id), work)
        return None
    if shape is None:
        rights = connection.caller.rights
        shape = learn(rights, version, client_id, frame, request, plan, partitions_asked, max_bytes)
        connection.fetch_shape = shape
    attempt = look(
        connection,
        request,
        partitions_asked,
        max_bytes,
        out_of_time=request.max_wait_ms <= 0,
        any_replica=version >= ANY_REPLICA,
        notes_position=True,
        followed=plan.followed,
    )
    if plan.followed is not None:
        plan.followed.asked_ms = int(connection.server.loop.time() * 1000)
    if (
        attempt.record_bytes >= min(request.min_bytes, max_bytes)
        or attempt.at_once
        or (not partitions_asked and plan.followed is None)
        or (request.max_wait_ms <= 0 and not attempt.misses)
    ):
        connection.replaying = attempt.replays is True
        if shape is not None and shape.kind is not None and attempt.shareable is not None:
            share(context.fan_out, shape.kind, attempt.shareable, attempt.found[0])
        throttle_time_ms = charge(connection, client_id, request.rack_id, attempt)
        if attempt.denied:
            attempt.tell_denied(client_id, correlation_id)
        return answer(context, RequestFields(version, correlation_id, throttle_time_ms), plan, attempt)
    slot = connection.open_slot(connection.server.metrics.meter(FETCH), stops_parsing=True)
    asked = RequestFields(version, correlation_id)
    ParkedFetch(connection, slot, asked, client_id, request, plan, partitions_asked, max_bytes, attempt)
    return None


async def serve_long_frame(
    connection: Client, slot: Slot, asked: RequestFields, noted: Request, body: bytes, *, chosen: bool
) -> None:
    """As ``serve_fetch``, for a request that takes long to decode."""
    context, client_id = connection.context, noted.client_id
    request = await decoded(connection, slot, partial(decode_fetch, asked.version, body))
    if request is None:
        return
    noted.is_free = follower_of(context, connection.caller, request) is not None
    portion = Portion()
    listed: list[AskedPartition] = []
    for topic, of_topic in request.topics:
        for some in slices(of_topic, LOOKED_AT_ONCE):
            listed += asked_of(topic, some)
            await portion.rest_if_spent()
    await portion.rest()
    if has_left(connection, slot):
        return  # a session of its own would end that of the client's next connection
    plan = plan_of(context, connection.caller, asked.version, request, listed)
    if plan.error:
        refused = encode_fetch_response(asked.version, asked.correlation_id, [], error_code=plan.error)
        connection.complete(slot, unwrap(refused))
        return
    partitions = list(plan.partitions) if plan.followed is None else []
    if chosen:
        tell_fetched(connection, client_id, asked.correlation_id, request, partitions)
    max_bytes = min(request.max_bytes, context.config.fetch_max_bytes)
    if context.quotas is not None and request.replica_id < 0:
        share_bytes = context.quotas.fetch_bytes_max(connection.caller, client_id)
        if share_bytes is not None:
            max_bytes = min(max_bytes, share_bytes)
    if partitions and request.replica_id < 0:
        await look_in_portions(connection, slot, asked, client_id, request, plan, partitions, max_bytes)
        return
    attempt = look(
        connection,
        request,
        partitions,
        max_bytes,
        out_of_time=request.max_wait_ms <= 0,
        any_replica=asked.version >= ANY_REPLICA,
        notes_position=True,
        followed=plan.followed,
    )
    if plan.followed is not None:
        plan.followed.asked_ms = int(connection.server.loop.time() * 1000)
    if (
        attempt.record_bytes >= min(request.min_bytes, max_bytes)
        or attempt.at_once
        or (not partitions and plan.followed is None)
        or (request.max_wait_ms <= 0 and not attempt.misses)
    ):
        complete(connection, slot, asked, client_id, request, plan, attempt)
    else:
        ParkedFetch(connection, slot, asked, client_id, request, plan, partitions, max_bytes, attempt)


def complete(
    connection: Client,
    slot: Slot,
    asked: RequestFields,
    client_id: str | None,
    request: FetchRequest,
    plan: FetchPlan,
    attempt: Attempt,
) -> None:
    """Answer a request with the results of an attempt."""
    told = begin_answer(connection, asked, client_id, request, attempt)
    connection.complete(slot, answer(connection.context, told, plan, attempt))


def begin_answer(
    connection: Client, asked: RequestFields, client_id: str | None, request: FetchRequest, attempt: Attempt
) -> RequestFields:
    """Charge the client for the records of an attempt. Returns ``asked`` with the throttle time of the response."""
    connection.replaying = attempt.replays is True
    throttle_time_ms = charge(connection, client_id, request.rack_id, attempt)
    if attempt.denied:
        attempt.tell_denied(client_id, asked.correlation_id)
    return asked._replace(throttle_time_ms=throttle_time_ms)


async def look_in_portions(
    connection: Client,
    slot: Slot,
    asked: RequestFields,
    client_id: str | None,
    request: FetchRequest,
    plan: FetchPlan,
    partitions: list[CachedPartition],
    max_bytes: int,
) -> None:
    """Serve a consumer's Fetch of many partitions."""
    await asyncio.sleep(0)  # planning had this turn

    def look_at(
        some: list[CachedPartition], attempt: Attempt | None, out_of_time: bool, disk_error: FirnError | None
    ) -> Attempt:
        return look(
            connection,
            request,
            some,
            max_bytes,
            out_of_time=out_of_time,
            any_replica=asked.version >= ANY_REPLICA,
            disk_error=disk_error,
            attempt=attempt,
        )

    async def finish(attempt: Attempt) -> None:
        told = begin_answer(connection, asked, client_id, request, attempt)
        connection.complete(slot, await answer_in_portions(connection.context, told, plan, attempt))

    await serve_long(connection, slot, request, plan, partitions, max_bytes, look_at, finish)


def tell_fetched(
    connection: Client,
    client_id: str | None,
    correlation_id: int,
    request: FetchRequest,
    partitions: Iterable[CachedPartition],
) -> None:
    """Write a consumer's request that the sampler has chosen to the audit log."""
    context, caller = connection.context, connection.caller
    if context.audit is None or request.replica_id >= 0:
        return
    names = dict.fromkeys(topic_name(context, one.topic) for one in partitions)
    resources = [
        Resource(Operation.READ.name, ResourceType.TOPIC.name, name)
        for name in names
        if name is not None and may(context, caller, Operation.READ, ResourceType.TOPIC, name)
    ]
    if resources or not names:
        context.audit.served(caller, FETCH, client_id, correlation_id, resources)


def follower_of(context: Context, caller: Caller, request: FetchRequest) -> Follower | None:
    """The follower that a request claims to be from, if there is one and the caller may act as a broker.

    Only that follower may use its session and its positions.
    """
    if request.replica_id < 0 or not may(context, caller, Operation.CLUSTER_ACTION, ResourceType.CLUSTER):
        return None
    return find_follower(context.image, context.node_id, request.replica_id, request.replica_epoch)


def asked_of(topic: TopicRef, partitions: Sequence[FetchPartition]) -> list[AskedPartition]:
    """Partitions of a request as its session keeps them."""
    return [
        AskedPartition(topic, index, offset, max_bytes, epoch, last_epoch, stored_end, log_start)
        for index, epoch, offset, last_epoch, log_start, max_bytes, stored_end in partitions
    ]


def plan_of(
    context: Context,
    caller: Caller,
    version: int,
    request: FetchRequest,
    asked: list[AskedPartition] | None = None,
) -> FetchPlan:
    """Bring the session of a request up to date, if it has one, and return the partitions to look at. ``asked``: the partitions
    that the request names, if they were listed already."""
    if asked is None:
        asked = []
        for topic, partitions in request.topics:
            asked += asked_of(topic, partitions)
    return context.fetch_sessions.plan(
        request.session_id,
        request.session_epoch,
        asked,
        [(topic, index) for topic, indexes in request.forgotten for index in indexes],
        uses_topic_ids=version >= TOPIC_IDS,
        follower=follower_of(context, caller, request),
        now_ms=context.clock.now_ms(),
    )


def charge(connection: Client, client_id: str | None, rack: str, attempt: Attempt) -> int:
    """As ``Client.charge``, for the records of an attempt. A follower's records count for no client's share."""
    context = connection.context
    quotas, zones = context.quotas, context.metrics.zones
    if zones is not None and attempt.record_bytes:
        if attempt.follower is None:
            zones.consumed(client_id, rack, attempt.record_bytes)
        else:
            broker = context.image.brokers.get(BrokerId(attempt.follower.broker_id))
            zones.replicated(None if broker is None else broker.rack, attempt.record_bytes)
    if quotas is None or attempt.follower is not None:
        return 0
    throttle_time_ms = quotas.charge(connection.caller, client_id, FETCH, attempt.record_bytes)
    if attempt.cold_bytes:
        throttle_time_ms = max(throttle_time_ms, quotas.read_cold(connection.caller, client_id, attempt.cold_bytes))
    return connection.rest(throttle_time_ms)


class ParkedFetch:
    """A Fetch that waits for more bytes or for its time to be up."""

    __slots__ = (
        "_asked",
        "_awaited_store",
        "_client_id",
        "_connection",
        "_disk_error",
        "_ends_s",
        "_logs",
        "_max_bytes",
        "_partitions",
        "_plan",
        "_remote_cancels",
        "_request",
        "_rights",
        "_slot",
        "_timer",
        "_woken",
    )

    def __init__(
        self,
        connection: Client,
        slot: Slot,
        asked: RequestFields,
        client_id: str | None,
        request: FetchRequest,
        plan: FetchPlan,
        partitions: list[CachedPartition],
        max_bytes: int,
        attempt: Attempt,
    ) -> None:
        self._connection = connection
        self._slot = slot
        self._asked = asked
        self._client_id = client_id
        self._request = request
        self._plan = plan
        self._partitions = partitions
        self._max_bytes = max_bytes
        self._woken: asyncio.Handle | None = None
        self._disk_error: FirnError | None = None
        wait_ms = max(request.max_wait_ms, MISS_WAIT_MS) if attempt.misses else request.max_wait_ms
        loop = connection.server.loop
        if plan.followed is None:
            wait_s = wait_ms / 1000
        else:
            wait_ms = connection.context.parked_followers.wait_ms(wait_ms, restless=plan.followed.restless)
            wait_s = shared_wait_s(loop.time(), wait_ms / 1000)
        self._ends_s = loop.time() + wait_s
        """When the timer is due. The handle does not know it: for a wait that rounds to 0 ms uvloop's handle has no time."""
        self._timer: asyncio.Handle = loop.call_later(wait_s, self._out_of_time)
        self._logs: list[PartitionLog] = []
        self._remote_cancels: list[Callable[[], None]] = []
        self._awaited_store = False
        connection.on_close.add(self)
        self._rights = connection.caller.rights
        if connection.context.authorizer is not None:
            self._rights.on_end.add(self._wake)
        self._park(attempt)

    def _park(self, attempt: Attempt) -> None:
        """Wait for the logs and chunks that could give the next attempt more records."""
        attempt.release()
        followed = self._plan.followed
        if followed is not None:
            followed.on_due = self._wake
            followed.on_moved = self._hurry_followed
            self._connection.context.parked_followers.waiting.add(self._hurry)
            if followed.restless:
                self._hurry_followed()
            if followed.moving:
                self._hurry(moves_wait_ms(followed))
        self._logs = attempt.logs if followed is None else []
        if self._request.replica_id < 0:
            for log in self._logs:
                log.add_waiter(self._wake)
        else:
            for log in self._logs:
                log.add_tail_waiter(self._wake)
        if attempt.awaits_store and not self._awaited_store:
            self._awaited_store = True
            self._hurry(self._connection.context.effective.remote_fetch_max_wait_ms)
        self._remote_cancels = [wait(self._wake) for wait in attempt.remote_waits]
        for miss in attempt.misses:
            self._connection.server.spawn(self._load(miss), self._connection)

    def _hurry(self, wait_ms: int) -> None:
        """Wait at most ``wait_ms`` from now on."""
        loop = self._connection.server.loop
        until_s = loop.time() + wait_ms / 1000
        if until_s < self._ends_s:
            self._timer.cancel()
            self._ends_s = until_s
            self._timer = loop.call_at(until_s, self._out_of_time)

    async def _load(self, miss: PageMiss) -> None:
        """Read missing bytes from the disk, and look again. The next attempt sees an error, if there is one."""
        try:
            await miss.fetch(self._connection.context.pool)
        except FirnError as error:
            self._disk_error = without_frames(error)
        if not self._slot.done and not self._connection.closed:
            self._wake()

    def _unpark(self) -> None:
        followed = self._plan.followed
        if followed is not None and followed.on_due == self._wake:  # else a later request of the session waits
            followed.on_due = followed.on_moved = None
        if followed is not None:
            self._connection.context.parked_followers.waiting.discard(self._hurry)
        if self._request.replica_id < 0:
            for log in self._logs:
                log.remove_waiter(self._wake)
        else:
            for log in self._logs:
                log.remove_tail_waiter(self._wake)
        self._logs = []
        for cancel in self._remote_cancels:
            cancel()
        self._remote_cancels = []

    def _hurry_followed(self) -> None:
        self._hurry(RESTLESS_MS)

    def _wake(self) -> None:
        if self._woken is None:
            self._woken = self._connection.server.loop.call_soon(self._look_again)

    def _look_again(self) -> None:
        replays = self._connection.context.replays
        began_s = replays.elapsed_s()
        self._woken = None
        self._unpark()
        attempt = self._look()
        enough = min(self._request.min_bytes, self._max_bytes)
        if attempt.record_bytes >= enough or attempt.at_once:
            self._finish(attempt)
        else:
            self._park(attempt)
        replays.account(began_s, self._connection.replaying)

    def _out_of_time(self) -> None:
        self._unpark()
        self._finish(self._look(out_of_time=True))

    def _look(self, *, out_of_time: bool = False) -> Attempt:
        followed = self._plan.followed
        return look(
            self._connection,
            self._request,
            self._partitions,
            self._max_bytes,
            out_of_time=out_of_time,
            any_replica=self._asked.version >= ANY_REPLICA,
            disk_error=self._disk_error,
            followed=followed,
        )

    def _finish(self, attempt: Attempt) -> None:
        self.cancel()
        connection = self._connection
        connection.replaying = attempt.replays is True
        throttle_time_ms = charge(connection, self._client_id, self._request.rack_id, attempt)
        asked = self._asked._replace(throttle_time_ms=throttle_time_ms)
        if attempt.denied:
            attempt.tell_denied(self._client_id, asked.correlation_id)
        connection.complete(self._slot, answer(connection.context, asked, self._plan, attempt))

    def cancel(self) -> None:
        """Stop waiting. Reads from the object store go on, because they fill a cache that others share."""
        self._timer.cancel()
        if self._woken is not None:
            self._woken.cancel()
            self._woken = None
        self._unpark()
        self._rights.on_end.discard(self._wake)
        self._connection.on_close.discard(self)


# --- looking ------------------------------------------------------------------------------------------------------------


def look(
    connection: Client,
    request: FetchRequest,
    partitions: Sequence[CachedPartition],
    max_bytes: int,
    *,
    out_of_time: bool,
    any_replica: bool,
    disk_error: FirnError | None = None,
    notes_position: bool = False,
    followed: FetchSession | None = None,
    attempt: Attempt | None = None,
) -> Attempt:
    """Collect the records of every partition, within the limits. ``attempt`` has the results of the partitions before these.

    ``out_of_time``: the client waits no longer, not even for the turn of a replay. ``any_replica``: a consumer may read from
    a follower, and be sent to one (V1). ``disk_error``: partitions that need the disk
    are answered with it, and the disk is not read again. ``notes_position``: the request has just come, so the position that a
    follower tells is its present one. ``followed``: the session of a follower, which knows the partitions to look at.
    """
    context = connection.context
    if attempt is None:
        attempt = Attempt(connection, out_of_time)
    caller = connection.caller
    if request.replica_id >= 0:
        attempt.follower = follower_of(context, caller, request)
        attempt.now_ms = int(connection.server.loop.time() * 1000)
    if followed is not None:
        attempt.moves_left = share_of_moves(followed, context.metrics.bytes_in.value, attempt.now_ms)
        partitions = followed.to_look_at(None if attempt.moves_left is None else MOVES_AT_ONCE)
    descriptors = context.logs.log_directory.descriptors
    left = max(0, max_bytes - attempt.record_bytes)
    if attempt.record_bytes and descriptors.crowded:
        left = 0
    from_consumer = request.replica_id < 0
    require = context.partitions.require
    if from_consumer:
        require = context.partitions.require_replica if any_replica else context.partitions.require_served
    rack = request.rack_id if from_consumer and any_replica and context.selects_by_rack else ""
    asks = context.authorizer is not None
    denied = (
        asks
        and not from_consumer
        and attempt.follower is None  # else it was asked already
        and not may(context, caller, Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    )
    for cached in partitions:
        limit = min(cached.max_bytes, left)
        partition: Partition | None = None
        try:
            name = topic_name(context, cached.topic)
            if name is None:
                raise RequestRejected(ErrorCode.UNKNOWN_TOPIC_ID)
            if denied:
                attempt.deny(Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME)
                raise RequestRejected(ErrorCode.TOPIC_AUTHORIZATION_FAILED)
            if asks and from_consumer and not may(context, caller, Operation.READ, ResourceType.TOPIC, name):
                attempt.deny(Operation.READ, ResourceType.TOPIC, name)
                raise denial(caller, Operation.READ, ResourceType.TOPIC, name)
            partition = require(name, cached.partition)
            if not from_consumer:
                found = read_followed(
                    context, request, attempt, partition, cached, limit, disk_error, notes_position, followed
                )
            elif rack and (preferred := preferred_replica(context, partition, cached, rack)) is not None:
                found = preferred
                attempt.at_once = True
            else:
                found = read_partition(context, request, attempt, partition, cached, limit, disk_error)
        except FirnError as error:
            if partition is not None:
                context.faults.met_error(READING, str(partition.log.topic_partition), error)
            found = Found(cached, kafka_code(error), current_leader=hint(context, partition, error))
            attempt.at_once = True
            if followed is not None:
                followed.due[cached] = None
        attempt.found.append(found)
        if found.record_bytes:
            attempt.record_bytes += found.record_bytes
            attempt.offset_span += found.offset_span
            left = max(0, left - found.record_bytes)
            if descriptors.crowded:
                left = 0  # The next request reads on. Appends of others need descriptors, too.
                attempt.at_once = True
        elif found.diverging is not None:
            attempt.at_once = True
    return attempt


def preferred_replica(context: Context, partition: Partition, cached: CachedPartition, rack: str) -> Found | None:
    """The follower that a consumer in ``rack`` should read from (V2); None for this broker. Raises: as ``read_partition``."""
    check_epoch(partition.reader_epoch, cached.current_leader_epoch)
    replica = partition.preferred_replica(rack, cached.fetch_offset, context.image.brokers)
    if replica is None:
        return None
    log = partition.log
    return Found(
        cached,
        ErrorCode.NONE,
        log.high_watermark,
        log.last_stable_offset,
        log.log_start_offset,
        preferred_replica=replica,
    )


def read_partition(
    context: Context,
    request: FetchRequest,
    attempt: Attempt,
    partition: Partition,
    cached: CachedPartition,
    limit: int,
    disk_error: FirnError | None,
) -> Found:
    """Read one partition for a consumer. Raises: FirnError, answered for this partition alone."""
    check_epoch(partition.reader_epoch, cached.current_leader_epoch)
    log = partition.log
    offset = cached.fetch_offset
    high_watermark = log.high_watermark
    stable = log.last_stable_offset
    log_start = log.log_start_offset
    if cached.last_fetched_epoch >= 0:
        epoch, end = context.reads.epoch_end(log, LeaderEpoch(cached.last_fetched_epoch))
        if epoch < 0 or end < 0:
            raise RequestRejected(ErrorCode.OFFSET_OUT_OF_RANGE)
        if epoch < cached.last_fetched_epoch or end < offset:
            return Found(cached, ErrorCode.NONE, high_watermark, stable, log_start, diverging=(epoch, end))
    committed = request.isolation_level == READ_COMMITTED
    end_offset = stable if committed else high_watermark
    if not log_start <= offset <= log.log_end_offset:
        raise RequestRejected(ErrorCode.OFFSET_OUT_OF_RANGE)
    if offset >= end_offset:
        attempt.logs.append(log)
        return Found(cached, ErrorCode.NONE, high_watermark, stable, log_start, aborted=() if committed else None)
    first = attempt.record_bytes == 0
    if limit <= 0 and not first:
        return Found(cached, ErrorCode.NONE, high_watermark, stable, log_start, aborted=() if committed else None)
    read = context.reads.read(
        log,
        offset,
        limit,
        end_offset=end_offset,
        committed=committed,
        min_one_batch=first,
        enough_bytes=request.min_bytes - attempt.record_bytes,
        turn=attempt.turn,
    )
    if read.lacks is not None or read.is_cut:
        if disk_error is not None and not read.ranges and isinstance(read.lacks, PageMiss):
            raise copy_of(disk_error)
        attempt.note_end(read)
    elif len(read.ranges) == 1 and read.is_local and read.end_offset < end_offset and partition.leads:
        attempt.shareable = log
    if read.end_offset >= end_offset:
        attempt.logs.append(log)
        if read.end_offset > end_offset:
            # All records of the tier are committed and stable (T1), also if a new leader does not know that yet.
            high_watermark, stable = Offset(max(high_watermark, read.end_offset)), Offset(max(stable, read.end_offset))
    if not read.is_local:
        attempt.cold_bytes += read.length
    return Found(
        cached,
        ErrorCode.NONE,
        high_watermark,
        stable,
        log_start,
        read.ranges,
        read.length,
        read.end_offset - offset,
        tuple(read.aborted) if committed else None,
        log=log,
    )


def read_followed(
    context: Context,
    request: FetchRequest,
    attempt: Attempt,
    partition: Partition,
    cached: CachedPartition,
    limit: int,
    disk_error: FirnError | None,
    notes_position: bool,
    followed: FetchSession | None,
) -> Found:
    """Read one partition for a follower: all records that are on this disk. Raises: as ``read_partition``."""
    log = partition.log
    follower = check_follower(
        context.image,
        partition,
        attempt.follower,
        request.replica_id,
        request.replica_epoch,
        cached.current_leader_epoch,
    )
    in_sync = follower.broker_id in partition.in_sync
    share = None if in_sync or follower.broker_id not in partition.adding else attempt.moves_left
    if share == 0 and followed is not None and cached.fetch_offset < log.log_end_offset:
        followed.let_move(cached)
        return Found(cached, ErrorCode.NONE, log.high_watermark, log.last_stable_offset, log.log_start_offset)
    refused = compare(context, log, cached)
    if refused is not None:
        attempt.at_once = True
        if followed is not None:
            followed.due[cached] = None
        return Found(
            cached,
            refused.error,
            log.high_watermark,
            log.last_stable_offset,
            log.log_start_offset,
            diverging=refused.diverging,
        )
    if notes_position:
        note_position(context, partition, follower, cached, attempt.now_ms)
    marks = (log.high_watermark, log.last_stable_offset, log.log_start_offset)
    if context.selects_by_rack and 0 <= cached.high_watermark < log.high_watermark:
        # Consumers may wait at this follower for the high watermark (V4). Without a session this broker does not know
        # which high watermark it has told them.
        attempt.at_once = True
    throttled = is_throttled(context, partition, follower)
    if throttled and context.leader_throttle.is_exceeded(context.partitions.now_ms()):
        return Found(cached, ErrorCode.NONE, *marks)  # the next request looks again
    # A move that has a share gets a batch, however large it is, also if the response has records of others.
    min_one_batch = attempt.record_bytes == 0 or share is not None
    if share is not None:
        limit = min(limit, share)
    try:
        read = read_for_follower(log, cached.fetch_offset, limit, min_one_batch=min_one_batch)
    except PageMiss as miss:
        if disk_error is not None:
            raise copy_of(disk_error) from None
        attempt.misses.append(without_frames(miss))
        return Found(cached, ErrorCode.NONE, *marks)
    if read.at_end:
        attempt.logs.append(log)
    if read.range is None:
        if followed is not None and notes_position and read.at_end:
            settle(followed, cached, partition, follower, tells_at_once=context.selects_by_rack)
        return Found(cached, ErrorCode.NONE, *marks)
    if followed is not None:
        if share is not None:
            attempt.moves_left = max(0, share - read.range.length)
            followed.moves_bytes -= read.range.length
            followed.let_move(cached)
        else:
            followed.due.pop(cached, None)  # behind the others, until the follower tells that it has them
            followed.due[cached] = None
            if in_sync:
                followed.in_sync_ms = attempt.now_ms
    span = read.end_offset - cached.fetch_offset
    return Found(cached, ErrorCode.NONE, *marks, (read.range,), read.range.length, span, throttled=throttled)


def is_throttled(context: Context, partition: Partition, follower: Follower) -> bool:
    """Whether a follower's records count for the throttle: its replica is out of sync, and the setting names this one (V7)."""
    throttle = context.leader_throttle
    return (
        throttle.limit != UNLIMITED
        and throttle.covers(partition.log.config.leader_replication_throttled_replicas, partition.index)
        and follower.broker_id not in partition.in_sync
    )


# --- answering ----------------------------------------------------------------------------------------------------------


def answer(context: Context, asked: RequestFields, plan: FetchPlan, attempt: Attempt) -> list[Part]:
    """The response that carries the results of an attempt."""
    if plan.followed is not None and not plan.overtaken:
        plan.followed.moved.clear()
    if plan.overtaken:
        attempt.release()
        return unwrap(
            encode_fetch_response(
                asked.version, asked.correlation_id, [], error_code=ErrorCode.INVALID_FETCH_SESSION_EPOCH
            )
        )
    topics: dict[TopicRef, list[PartitionData]] = {}
    leaders: set[int] = set()
    put_found(asked.version, plan, attempt.found, topics, leaders)
    return encoded(context, asked, plan, attempt, topics, leaders)


async def answer_in_portions(context: Context, asked: RequestFields, plan: FetchPlan, attempt: Attempt) -> list[Part]:
    """As ``answer``, of many partitions. The ranges belong to the attempt until this returns, and to the response from then on."""
    topics: dict[TopicRef, list[PartitionData]] = {}
    leaders: set[int] = set()
    portion = Portion()
    if not plan.overtaken:
        for some in slices(attempt.found, LOOKED_AT_ONCE):
            put_found(asked.version, plan, some, topics, leaders)
            await portion.rest_if_spent()
        await portion.rest()  # encoding has a turn of its own
    if plan.overtaken:
        return answer(context, asked, plan, attempt)
    return encoded(context, asked, plan, attempt, topics, leaders)


def put_found(
    version: int,
    plan: FetchPlan,
    found: Sequence[Found],
    topics: dict[TopicRef, list[PartitionData]],
    leaders: set[int],
) -> None:
    """Add results to the topics of a response, and to the leaders that it names."""
    in_session = plan.session is not None
    for one in found:
        cached = one.cached
        if in_session and not plan.includes(
            cached,
            error=one.error,
            high_watermark=one.high_watermark,
            log_start_offset=one.log_start_offset,
            record_bytes=one.record_bytes,
            diverges=one.diverging is not None,
            redirects=one.preferred_replica >= 0,
        ):
            continue
        data = PartitionData(
            cached.partition,
            one.error,
            one.high_watermark,
            one.last_stable_offset,
            one.log_start_offset,
            one.preferred_replica,
            RecordsRef(one.record_bytes, one.ranges) if one.record_bytes else None,
            one.aborted,
            one.diverging,
            one.current_leader if version >= ENDPOINTS else None,
        )
        if one.current_leader is not None:
            leaders.add(one.current_leader[0])
        if one.log is not None:
            one.log.sent_bytes += one.record_bytes
            one.log.sent_records += one.offset_span
        of_topic = topics.get(cached.topic)
        if of_topic is None:
            topics[cached.topic] = [data]
        else:
            of_topic.append(data)


def encoded(
    context: Context,
    asked: RequestFields,
    plan: FetchPlan,
    attempt: Attempt,
    topics: dict[TopicRef, list[PartitionData]],
    leaders: set[int],
) -> list[Part]:
    """The response of these topics, which are counted as sent."""
    version, correlation_id, throttle_time_ms = asked
    if attempt.follower is None:
        context.metrics.bytes_out.value += attempt.record_bytes
        context.metrics.records_out.value += attempt.offset_span
    else:
        context.metrics.replication_bytes_out.value += attempt.record_bytes
        throttled_bytes = sum(one.record_bytes for one in attempt.found if one.throttled)
        if throttled_bytes:
            context.leader_throttle.record(throttled_bytes, context.partitions.now_ms())
    return unwrap(
        encode_fetch_response(
            version,
            correlation_id,
            list(topics.items()),
            throttle_time_ms=throttle_time_ms,
            session_id=plan.session_id,
            node_endpoints=node_endpoints(context, attempt.client.caller, leaders) if leaders else (),
        )
    )


def share(fan_out: FanOut, kind: FetchKind, log: PartitionLog, found: Found) -> None:
    """Keep a result for other consumers, if its offset was asked for before."""
    offset = found.cached.fetch_offset
    if fan_out.asked(kind, offset):
        (one,) = found.ranges
        assert isinstance(one, FileRange)
        fan_out.keep(
            kind,
            offset,
            SharedAnswer(kind, log, one.handle, one.position, one.length, found.offset_span, found.aborted),
        )


def again(context: Context, correlation_id: int, shared: SharedAnswer, throttle_time_ms: int) -> list[Part]:
    """The response that another consumer got, with the present offsets and throttle time."""
    records = FileRange(shared.handle, shared.position, shared.length, lasting=True, cached=True)
    shared.log.sent_bytes += shared.length
    shared.log.sent_records += shared.offset_span
    context.metrics.bytes_out.value += shared.length
    context.metrics.records_out.value += shared.offset_span
    head = shared.head(correlation_id, throttle_time_ms)
    return [head, records, shared.end] if shared.end else [head, records]


def unwrap(pieces: Sequence[bytes | RecordsRef]) -> list[Part]:
    """The codec's pieces as the connection's parts."""
    parts: list[Part] = []
    for piece in pieces:
        if type(piece) is bytes:
            parts.append(piece)
        else:
            parts.extend(piece.source)  # type: ignore[union-attr, arg-type]
    return parts
