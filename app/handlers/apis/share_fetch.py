"""ShareFetch (key 78) and ShareAcknowledge (key 79): give records to members of share groups, and take their acknowledgements.

A group starts to read a partition where ``share.auto.offset.reset`` says. Records are read from either tier, from the first
available offset on. Some offsets are not for members: control batches, batches of aborted transactions at read_committed, and
offsets that compaction emptied. They are marked as done on the way.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from operator import itemgetter
from typing import TYPE_CHECKING, Final, NamedTuple

from app.core.errors import ErrorCode, FirnError, RequestRejected, copy_of, kafka_code
from app.core.limits import REQUEST_BYTES_MAX, SHARE_FETCH_WAIT_MS_MAX, SHARE_MEMBER_ID_CHARS_MAX
from app.core.units import Offset, TimestampMs
from app.groups.share.core.share_partitions import SharePartition
from app.groups.share.core.share_sessions import FINAL, FIRST, Place, ShareSession
from app.groups.share.core.share_state import ShareKey
from app.groups.share.core.share_window import Acknowledgement, AcknowledgeType, Acquired
from app.groups.share.share_states import NOT_YET
from app.handlers.base.api import Api, ApiTable
from app.handlers.base.authorising import require
from app.handlers.base.partitions import LEADER_CODES, hint, led_log, node_endpoints
from app.handlers.base.request import Request
from app.handlers.base.views import SharesView
from app.metadata.changes.group_configs import reset_duration_ms
from app.records.batch import iter_headers
from app.replication.reading import Awaited
from app.security.acls import Operation, ResourceType
from app.wire.apikeys import ApiKey
from app.wire.apis.share_acknowledge import (
    LeaderIdAndEpoch as AcknowledgedLeader,
)
from app.wire.apis.share_acknowledge import (
    NodeEndpoint as AcknowledgeEndpoint,
)
from app.wire.apis.share_acknowledge import (
    PartitionData as AcknowledgedPartition,
)
from app.wire.apis.share_acknowledge import (
    ShareAcknowledgeRequest,
    ShareAcknowledgeResponse,
    ShareAcknowledgeTopicResponse,
)
from app.wire.apis.share_fetch import (
    AcquiredRecords,
    PartitionData,
    ShareFetchableTopicResponse,
    ShareFetchRequest,
    ShareFetchResponse,
)
from app.wire.apis.share_fetch import (
    LeaderIdAndEpoch as FetchLeader,
)
from app.wire.apis.share_fetch import (
    NodeEndpoint as FetchEndpoint,
)

if TYPE_CHECKING:
    from uuid import UUID

    from app.hot.log import PartitionLog
    from app.replication.reading import AbortedTransaction

PARTITION_BYTES_MAX: Final = 1 << 20
"""Read of one partition for one answer."""
PASSES_MAX: Final = 16
"""Reads of one partition for one answer, while they find no records for members."""
RETRY_S: Final = 0.1
BATCH_OPTIMIZED: Final = 0
"""Acquire mode in which a record batch is not split between members, if possible (KIP-1206)."""
RENEW_FROM: Final = 2
"""First version in which a member can ask for more time."""

NOBODY: Final = (-1, -1)
"""No leader is named. The defaults of these fields would name broker 0."""


class Read(NamedTuple):
    """The whole batches that were read from a log."""

    data: bytes | bytearray
    aborted: Sequence[AbortedTransaction]
    """Aborted transactions that overlap it, at read_committed."""


# --- ShareFetch -----------------------------------------------------------------------------------------------------


async def fetch(context: SharesView, request: Request, message: ShareFetchRequest) -> ShareFetchResponse:
    """Take the member's acknowledgements, then give it other records. Waits for records if there are none.

    Raises: RequestRejected for the request as a whole.
    """
    group_id, member_id = _names(message.group_id, message.member_id)
    await context.shares.ready()
    renews = _renews(request, message)
    if renews and (message.max_wait_ms or message.min_bytes or message.max_bytes or message.max_records):
        raise RequestRejected(ErrorCode.INVALID_REQUEST, "A request for more time asks for no records.")
    said = _said(message)
    session = _session(context, request, message, group_id, member_id, has_said=bool(said))
    answers: dict[Place, PartitionData] = {}
    for place, batches in said.items():
        key = ShareKey(group_id, *place)
        code, sentence = await _acknowledge(context, request, key, member_id, batches, renews=renews)
        answers[place] = answered = PartitionData(
            place[1], acknowledge_error_code=code, acknowledge_error_message=sentence, records=b""
        )
        answered.current_leader = FetchLeader(*_led_elsewhere(context, place, code))
    if message.share_session_epoch == FINAL:
        await _end(context, group_id, member_id, session)
    elif not renews:
        fetching = _Fetching(context, request, message, group_id, member_id, session)
        for place, found in (await fetching.run(may_wait=not answers)).items():
            known = answers.get(place)
            if known is not None:
                found.acknowledge_error_code = known.acknowledge_error_code
                found.acknowledge_error_message = known.acknowledge_error_message
                if found.current_leader.leader_id < 0:
                    found.current_leader = known.current_leader
            answers[place] = found
    topics: dict[UUID, list[PartitionData]] = {}
    for (topic_id, _), answer in answers.items():
        topics.setdefault(topic_id, []).append(answer)
    leaders = {
        answer.current_leader.leader_id
        for answer in answers.values()
        if answer.error_code in LEADER_CODES or answer.acknowledge_error_code in LEADER_CODES
    }
    return ShareFetchResponse(
        acquisition_lock_timeout_ms=context.shares.settings(group_id).lock_ms,
        responses=[ShareFetchableTopicResponse(topic_id, parts) for topic_id, parts in topics.items()],
        node_endpoints=[FetchEndpoint(*one) for one in node_endpoints(context, request.caller, leaders)],
    )


def _names(group_id: str | None, member_id: str | None) -> tuple[str, str]:
    if not group_id or not member_id:
        raise RequestRejected(ErrorCode.INVALID_REQUEST, "A share session needs a group id and a member id.")
    if len(member_id) > SHARE_MEMBER_ID_CHARS_MAX:
        raise RequestRejected(ErrorCode.INVALID_REQUEST, "The member id is too long.")
    return group_id, member_id


def _renews(request: Request, message: ShareFetchRequest | ShareAcknowledgeRequest) -> bool:
    """Whether a request asks for more time."""
    return request.api_version >= RENEW_FROM and message.is_renew_ack


def _said(message: ShareFetchRequest | ShareAcknowledgeRequest) -> dict[Place, list[Acknowledgement]]:
    """The acknowledgements of a request, by partition."""
    said: dict[Place, list[Acknowledgement]] = {}
    for topic in message.topics:
        for partition in topic.partitions:
            for batch in partition.acknowledgement_batches:
                place = (topic.topic_id, partition.partition_index)
                said.setdefault(place, []).append(
                    Acknowledgement(batch.first_offset, batch.last_offset + 1, batch.acknowledge_types)
                )
    return said


def _session(
    context: SharesView, request: Request, message: ShareFetchRequest, group_id: str, member_id: str, *, has_said: bool
) -> ShareSession:
    """Return the session, with the partitions that this request adds to it and takes from it. Raises: RequestRejected."""
    sessions, now_ms = context.shares.sessions, context.clock.now_ms()
    epoch = message.share_session_epoch
    if epoch == FIRST:
        if has_said:
            raise RequestRejected(
                ErrorCode.INVALID_REQUEST, "The first request of a share session acknowledges nothing."
            )
        session = sessions.begin(group_id, member_id, now_ms)
        _Bound(context, request, group_id, member_id, session)
    else:
        session = sessions.next(group_id, member_id, epoch, now_ms)
    if epoch != FINAL:
        sessions.change(
            session,
            [(topic.topic_id, each.partition_index) for topic in message.topics for each in topic.partitions],
            [(topic.topic_id, index) for topic in message.forgotten_topics_data for index in topic.partitions],
        )
    return session


class _Bound:
    """Ties a session to the connection that it was begun on."""

    def __init__(
        self, context: SharesView, request: Request, group_id: str, member_id: str, session: ShareSession
    ) -> None:
        self._shares = context.shares
        self._on_close = request.on_close
        self._group_id = group_id
        self._member_id = member_id
        self._session = session
        session.on_end = self._end
        request.on_close.add(self)

    def cancel(self) -> None:
        """The connection has ended."""
        self._shares.sessions.drop(self._group_id, self._member_id, self._session)

    def _end(self) -> None:
        self._on_close.discard(self)
        if self._session.gives_back:
            self._shares.release(self._group_id, self._member_id, self._session)


async def _acknowledge(
    context: SharesView,
    request: Request,
    key: ShareKey,
    member_id: str,
    said: Sequence[Acknowledgement],
    *,
    renews: bool,
) -> tuple[ErrorCode, str | None]:
    topic = context.image.topic_by_id(key.topic_id)
    if topic is None:
        return ErrorCode.UNKNOWN_TOPIC_ID, f"There is no topic {key.topic_id}."
    try:
        require(context, request, Operation.READ, ResourceType.TOPIC, topic.name)
    except RequestRejected as error:
        return error.code, str(error)
    if not renews and any(AcknowledgeType.RENEW in each.types for each in said):
        return ErrorCode.INVALID_REQUEST, "Only a request that says so can renew."
    if (
        renews
        and not context.shares.settings(key.group_id).renews
        and any(AcknowledgeType.RENEW in each.types for each in said)
    ):
        return (
            ErrorCode.INVALID_RECORD_STATE,
            "share.renew.acknowledge.enable is false for this group: nothing is renewed.",
        )
    leader = context.shares.leader
    try:
        leader_epoch = led_log(context, topic.name, key.partition).leader_epoch
        if leader.find(key, leader_epoch) is None:
            return ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, "Nobody has records of this partition from this broker."
        waiting = leader.acknowledge(key, member_id, said)
        if waiting is not None:
            await waiting
    except FirnError as error:
        code = kafka_code(error)
        return ErrorCode.NOT_LEADER_OR_FOLLOWER if code in NOT_YET else code, str(error)
    return ErrorCode.NONE, None


def _led_elsewhere(context: SharesView, place: Place, code: ErrorCode) -> tuple[int, int]:
    """Leader and epoch to name beside the error of an acknowledgement (KIP-951).

    ``NOBODY`` for other errors, for a partition without leader, while this broker is isolated (IS10), and if this broker leads it
    and only cannot look up the group's progress.
    """
    partition = context.image.partition(*place) if code in LEADER_CODES and not context.partitions.isolated else None
    if partition is None or partition.leader < 0 or partition.leader == context.node_id:
        return NOBODY
    return partition.leader, partition.leader_epoch


async def _end(context: SharesView, group_id: str, member_id: str, session: ShareSession) -> None:
    """End a session after its last request. Its member gives back its records: wait, if possible, until that is stored."""
    context.shares.sessions.drop(group_id, member_id, session)
    for place in session.places:
        try:
            waiting = context.shares.leader.stored(ShareKey(group_id, *place))
            if waiting is not None:
                await waiting
        except RequestRejected:
            continue


class _Fetching:
    """One ShareFetch that looks for records."""

    def __init__(
        self,
        context: SharesView,
        request: Request,
        message: ShareFetchRequest,
        group_id: str,
        member_id: str,
        session: ShareSession,
    ) -> None:
        self._context = context
        self._request = request
        self._group_id = group_id
        self._member_id = member_id
        self._session = session
        self._bytes_min = min(message.min_bytes, message.max_bytes)
        self._bytes_left = message.max_bytes
        self._partition_bytes = message.max_bytes
        """Limit of one partition, when all partitions get the same share."""
        self._records_left = message.max_records
        self._whole_batches = message.share_acquire_mode == BATCH_OPTIMIZED
        self._batch_records = message.batch_size
        self._deadline = asyncio.get_running_loop().time() + min(message.max_wait_ms, SHARE_FETCH_WAIT_MS_MAX) / 1000
        self._something = asyncio.Event()
        self._settings = context.shares.settings(group_id)
        self._unopened: dict[ShareKey, RequestRejected] = {}
        """Share-partitions whose progress could not be read, with the error."""
        self._undo: list[Callable[[], None]] = []
        """Functions that cancel the notices to ``_something``."""

    async def run(self, *, may_wait: bool) -> dict[Place, PartitionData]:
        """Look at every partition. If there are no records, wait until there may be some, and look again."""
        logs: list[PartitionLog] = []
        session = self._session
        over = session.over.add(self._something.set)
        on_end = self._request.caller.rights.on_end
        on_end.add(self._something.set)
        try:
            while not session.is_over:
                left_s = self._deadline - asyncio.get_running_loop().time()
                may_wait = may_wait and left_s > 0
                answers = await self._look(logs, bytes_min=self._bytes_min if may_wait else 0)
                if answers or not may_wait:
                    return answers
                try:
                    async with asyncio.timeout(left_s):
                        await self._something.wait()
                except TimeoutError:
                    may_wait = False  # the records that are there by now are enough
            return {}
        finally:
            over()
            on_end.discard(self._something.set)
            if session.gives_back:
                # It ended while something was being acquired.
                self._context.shares.release(self._group_id, self._member_id, session)
            for log in logs:
                log.remove_waiter(self._something.set)
            self._forget_waits()

    def _forget_waits(self) -> None:
        for undo in self._undo:
            undo()
        self._undo.clear()

    async def _look(self, logs: list[PartitionLog], *, bytes_min: int) -> dict[Place, PartitionData]:
        """The records that are there now, unless they are fewer bytes than ``bytes_min``. Ask to be told when there may be more.

        Partitions that the group has read before come first. The response holds one new partition. The other new ones are started,
        and are ready for the next request of any member. Kafka does the same, since it responds when the first of them has been
        looked up. So members that come together share the records that were there before them.
        """
        self._something.clear()
        self._forget_waits()
        if bytes_min > 1 and not await self._has(bytes_min, logs):
            return {}
        answers: dict[Place, PartitionData] = {}
        places = self._session.in_turn()
        await self._open(places, logs)
        new = {place: None for place in places if not self._is_begun(place)}
        begun = [place for place in places if place not in new]
        self._partition_bytes = max(1, self._bytes_left // max(1, len(begun)))
        records_max = self._records_left
        for place in [*begun, *new]:
            if self._records_left <= 0 or self._bytes_left <= 0:
                break
            topic_id, index = place
            try:
                log = self._log(topic_id, index, logs)
                key = ShareKey(self._group_id, topic_id, index)
                if place in new and self._records_left < records_max:
                    await self._shared(log, key)
                    continue
                found = await self._acquire(log, key)
            except FirnError as error:
                if kafka_code(error) in NOT_YET:
                    # Clients do not know this code for a partition: it is answered without records for now.
                    retry = asyncio.get_running_loop().call_later(RETRY_S, self._something.set)
                    self._undo.append(retry.cancel)
                    continue
                named = self._context.image.topic_by_id(topic_id)
                subject = f"{topic_id if named is None else named.name}-{index}"
                self._context.faults.met_error("sharing", subject, error)
                found = PartitionData(index, kafka_code(error), str(error), records=b"")
                found.current_leader = FetchLeader(*(hint(self._context, None, error) or NOBODY))
            if found is not None:
                answers[place] = found
        return answers

    async def _open(self, places: Iterable[Place], logs: list[PartitionLog]) -> None:
        """Read the progress of partitions that this broker leads, all unknown ones at once."""
        leader = self._context.shares.leader
        wanted: list[tuple[ShareKey, int]] = []
        for topic_id, index in places:
            try:
                leader_epoch = self._log(topic_id, index, logs).leader_epoch
            except FirnError:
                continue  # answered where it is looked at
            key = ShareKey(self._group_id, topic_id, index)
            if leader.find(key, leader_epoch) is None:
                wanted.append((key, leader_epoch))
        if wanted:
            self._unopened = await leader.open(wanted)

    def _is_begun(self, place: Place) -> bool:
        """Whether the group has read a partition before, as far as that is known."""
        shared = self._context.shares.find(ShareKey(self._group_id, *place))
        return shared is None or shared.is_begun

    async def _has(self, bytes_min: int, logs: list[PartitionLog]) -> bool:
        """Whether ``bytes_min`` could be given, or whether there is news that does not wait for bytes.

        Nothing is read to find out. Records that are no longer on the local disk count as enough.
        """
        size_bytes = 0
        await self._open(self._session.places, logs)
        for topic_id, index in self._session.places:
            try:
                log = self._log(topic_id, index, logs)
                shared = await self._shared(log, ShareKey(self._group_id, topic_id, index))
                self._undo.append(shared.changed.add(self._something.set))
                offset = self._next_offset(log, shared)
                if offset is not None:
                    if offset < log.local_log_start_offset:
                        return True
                    end = self._end(log)
                    read = await log.read_when_ready(offset, bytes_min + REQUEST_BYTES_MAX, end_offset=end)
                    if read.end_offset < end:
                        return True  # there is more in the next segment
                    size_bytes += read.length
            except FirnError:
                return True
            if size_bytes >= bytes_min:
                return True
        return False

    def _log(self, topic_id: UUID, index: int, logs: list[PartitionLog]) -> PartitionLog:
        """The log of a partition. From now on it tells this fetch of new records. Raises: RequestRejected."""
        topic = self._context.image.topic_by_id(topic_id)
        if topic is None:
            raise RequestRejected(ErrorCode.UNKNOWN_TOPIC_ID, f"There is no topic {topic_id}.")
        require(self._context, self._request, Operation.READ, ResourceType.TOPIC, topic.name)
        log = led_log(self._context, topic.name, index)
        if log not in logs:
            logs.append(log)
            log.add_waiter(self._something.set)
        return log

    def _next_offset(self, log: PartitionLog, shared: SharePartition) -> Offset | None:
        """The first offset that may be given to a member; None if there is none for now."""
        offset = max(shared.window.next_offset, log.log_start_offset)
        if offset >= self._end(log) or offset >= shared.window.start + self._settings.window_max:
            return None
        return Offset(offset)

    async def _acquire(self, log: PartitionLog, key: ShareKey) -> PartitionData | None:
        """Records of one partition for the member; None if there are none. Raises: FirnError."""
        shared = await self._shared(log, key)
        self._undo.append(shared.changed.add(self._something.set))
        for _ in range(PASSES_MAX):
            offset = self._next_offset(log, shared)
            if offset is None:
                return None
            try:
                read = await self._read(log, offset)
            except RequestRejected as error:
                if error.code is ErrorCode.OFFSET_OUT_OF_RANGE and offset < log.log_start_offset:
                    continue  # deleted while it was looked for
                raise
            if read is None:
                return None
            batches, nobody = sorted_out(read, offset)
            if not batches and not nobody:
                return None
            acquired = self._context.shares.leader.acquire(
                key,
                self._member_id,
                batches,
                nobody,
                log.log_start_offset,
                self._records_left,
                whole_batches=self._whole_batches,
            )
            if acquired:
                return self._given(log, read, acquired)
        return None

    def _end(self, log: PartitionLog) -> Offset:
        return log.last_stable_offset if self._settings.committed else log.high_watermark

    async def _shared(self, log: PartitionLog, key: ShareKey) -> SharePartition:
        """The share-partition, which was opened. It is started now if the group has not read it before.

        Raises: FirnError. RequestRejected UNKNOWN_SERVER_ERROR, on which clients try again, if it has no state. The group
        coordinator makes the states of topics to which members subscribe.
        """
        leader = self._context.shares.leader
        leader_epoch = log.leader_epoch
        shared = leader.find(key, leader_epoch)
        if shared is None:
            failed = self._unopened.get(key)
            if failed is None:
                raise RequestRejected(ErrorCode.NOT_COORDINATOR, "The group's progress has to be read again.")
            if failed.code is not ErrorCode.INVALID_REQUEST:
                raise copy_of(failed)
            raise RequestRejected(
                ErrorCode.UNKNOWN_SERVER_ERROR,
                f"No member of share group {key.group_id} subscribes to {log.topic}.",
            )
        if not shared.is_begun:
            start = await self._begins_at(log)
            if shared.is_over:
                raise RequestRejected(ErrorCode.NOT_COORDINATOR, "The group's progress has to be read again.")
            leader.begin(key, start)
            # Not before it is stored: the next leader would begin elsewhere (H7).
            waiting = leader.stored(key)
            if waiting is not None:
                await waiting
        return shared

    async def _begins_at(self, log: PartitionLog) -> Offset:
        """The first offset for a group that has not read the partition before. Raises: FirnError."""
        match self._settings.reset:
            case "latest":
                return log.high_watermark
            case "earliest":
                return log.log_start_offset
            case by_duration:
                ago_ms = reset_duration_ms(by_duration)
                assert ago_ms is not None, by_duration
                since = TimestampMs(self._context.clock.now_ms() - ago_ms)
                found = await self._context.reads.offset_for_timestamp(log, since)
                return log.high_watermark if found is None else found[1]

    async def _read(self, log: PartitionLog, offset: int) -> Read | None:
        """Whole batches from ``offset`` on, from either tier. None if they have not come from the store yet. Raises: FirnError."""
        reads = self._context.reads
        max_bytes = min(self._bytes_left, self._partition_bytes, PARTITION_BYTES_MAX)
        read = await reads.read_when_ready(
            log, offset, max_bytes, end_offset=self._end(log), committed=self._settings.committed
        )
        if not read.ranges and isinstance(read.lacks, Awaited):
            self._undo.append(read.lacks.add(self._something.set))
            return None
        return Read(await reads.take(read), list(read.aborted.values()))

    def _given(self, log: PartitionLog, read: Read, acquired: Sequence[Acquired]) -> PartitionData:
        """The answer: the acquired records, and only the batches that hold them."""
        first, end = acquired[0].first, acquired[-1].end
        start = stop = 0
        ends: list[int] = []
        for position, header in iter_headers(read.data):
            ends.append(header.end_offset)
            if header.end_offset <= first:
                start = position + header.size_bytes
            if header.base_offset < end:
                stop = position + header.size_bytes
        self._bytes_left -= stop - start
        records = sum(each.end - each.first for each in acquired)
        self._records_left -= records
        log.sent_bytes += stop - start
        log.sent_records += records
        self._context.metrics.bytes_out.value += stop - start
        self._context.metrics.records_out.value += records
        answer = PartitionData(
            log.partition,
            records=memoryview(read.data)[start:stop],
            acquired_records=[
                AcquiredRecords(each.first, each.end - 1, each.delivery_count)
                for each in in_batches(acquired, ends, self._batch_records)
            ],
        )
        answer.current_leader.leader_id, answer.current_leader.leader_epoch = self._context.node_id, log.leader_epoch
        return answer


def in_batches(acquired: Iterable[Acquired], batch_ends: Iterable[int], count_min: int) -> Iterator[Acquired]:
    """The acquired records, cut at the end of a record batch after ``count_min`` records or more (0: not cut).

    A member acknowledges in these pieces, so they should be neither very many nor very large.
    """
    ends = deque(batch_ends)
    for each in acquired:
        first = each.first
        while ends and ends[0] < each.end:
            end = ends.popleft()
            if 0 < count_min <= end - first:
                yield each._replace(first=first, end=end)
                first = end
        yield each._replace(first=first)


def sorted_out(read: Read, offset: int) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Offset ranges from ``offset`` on: of batches for members, and of offsets without records for members."""
    batches: list[tuple[int, int]] = []
    nobody: list[tuple[int, int]] = []
    aborted = _by_producer(read.aborted)
    for _, header in iter_headers(read.data):
        first, end = max(offset, header.base_offset), header.end_offset
        if end <= offset:
            continue
        if first > offset:
            nobody.append((offset, first))
        is_for_nobody = header.is_control or header.record_count == 0
        if header.is_transactional and not is_for_nobody:
            of_producer = aborted.get(header.producer_id, ())
            last = bisect_right(of_producer, header.base_offset, key=itemgetter(0)) - 1
            is_for_nobody = last >= 0 and header.base_offset <= of_producer[last][1]
        (nobody if is_for_nobody else batches).append((first, end))
        offset = end
    return batches, nobody


def _by_producer(
    aborted: Iterable[AbortedTransaction],
) -> dict[int, list[tuple[int, int]]]:
    """First and last offsets of transactions, in order. Those of one producer do not overlap."""
    found: dict[int, list[tuple[int, int]]] = {}
    for each in aborted:
        found.setdefault(each.producer_id, []).append((each.first_offset, each.last_offset))
    for of_producer in found.values():
        of_producer.sort()
    return found


def refuse_fetch(request: Request, message: ShareFetchRequest, code: ErrorCode, sentence: str) -> ShareFetchResponse:
    del request, message
    return ShareFetchResponse(error_code=code, error_message=sentence)


# --- ShareAcknowledge -----------------------------------------------------------------------------------------------


async def acknowledge(
    context: SharesView, request: Request, message: ShareAcknowledgeRequest
) -> ShareAcknowledgeResponse:
    """Take the member's acknowledgements. Raises: RequestRejected for the request as a whole."""
    group_id, member_id = _names(message.group_id, message.member_id)
    said, renews = _said(message), _renews(request, message)
    if message.share_session_epoch == FIRST:
        raise RequestRejected(ErrorCode.INVALID_SHARE_SESSION_EPOCH, "Nothing can be acknowledged before a fetch.")
    session = context.shares.sessions.next(group_id, member_id, message.share_session_epoch, context.clock.now_ms())
    topics: dict[UUID, list[AcknowledgedPartition]] = {}
    leaders: set[int] = set()
    for (topic_id, index), batches in said.items():
        key = ShareKey(group_id, topic_id, index)
        code, sentence = await _acknowledge(context, request, key, member_id, batches, renews=renews)
        answered = AcknowledgedPartition(index, error_code=code, error_message=sentence)
        leader = _led_elsewhere(context, (topic_id, index), code)
        answered.current_leader = AcknowledgedLeader(*leader)
        leaders.add(leader[0])
        topics.setdefault(topic_id, []).append(answered)
    if message.share_session_epoch == FINAL:
        await _end(context, group_id, member_id, session)
    return ShareAcknowledgeResponse(
        acquisition_lock_timeout_ms=context.shares.settings(group_id).lock_ms,
        responses=[ShareAcknowledgeTopicResponse(topic_id, parts) for topic_id, parts in topics.items()],
        node_endpoints=[AcknowledgeEndpoint(*one) for one in node_endpoints(context, request.caller, leaders)],
    )


def refuse_acknowledge(
    request: Request, message: ShareAcknowledgeRequest, code: ErrorCode, sentence: str
) -> ShareAcknowledgeResponse:
    del request, message
    return ShareAcknowledgeResponse(error_code=code, error_message=sentence)


APIS: Final[ApiTable] = {
    ApiKey.SHARE_FETCH: Api(fetch, refuse_fetch),
    ApiKey.SHARE_ACKNOWLEDGE: Api(acknowledge, refuse_acknowledge),
}
