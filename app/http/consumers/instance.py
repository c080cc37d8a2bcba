"""One consumer instance: a subscription or an assignment, positions, reads and commits, over the connections of its caller.

Nothing is read between requests. A request for records asks the leaders of up to ``SLICE`` partitions at a time, in rotation.

Tests: ``tests/http/rest_v2/test_consumers.py``, ``tests/http/rest_v2/test_groups_of_instances.py``.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Final
from uuid import UUID

from app.client.consumer import Consumer, FetchedBatch
from app.client.group_member import ActiveMember, GroupSubscription
from app.client.groups import NO_MEMBER
from app.core.errors import ErrorCode, FirnError, LimitExceeded, RequestRejected
from app.core.limits import MIB
from app.core.turns import Portion
from app.core.units import Offset, TopicPartition
from app.http.consumers.positions import Page, Positions
from app.http.consumers.settings import InstanceSettings
from app.http.errors import RestError
from app.http.gateway import Gateway
from app.http.pages import FETCH_BYTES_MAX, FETCH_WAIT_MS_MAX, batch_records
from app.http.read_budget import PageBytes

SLICE: Final = 500
"""Partitions of one Fetch, of one ListOffsets and of one OffsetCommit. Encoding more would hold the loop."""
SEVERAL_WAIT_MS: Final = 100
"""Wait of a round that asks several leaders: it ends with the slowest of them."""
PAGE_BYTES_MAX: Final = 4 * MIB
"""Keys and values of one response. One record may pass it."""
PAGE_RECORDS_MAX: Final = 10_000
PARTITIONS_MAX: Final = 10_000
"""Of one instance."""
CONFLICT: Final = 40903
NOT_FOUND: Final = 40403
GONE: Final = frozenset(
    {
        ErrorCode.UNKNOWN_MEMBER_ID,
        ErrorCode.FENCED_MEMBER_EPOCH,
        ErrorCode.STALE_MEMBER_EPOCH,
        ErrorCode.ILLEGAL_GENERATION,
    }
)
"""Codes of a commit whose partitions other members may have."""


def instance_not_found(group: str, instance_id: str) -> RestError:
    """The answer for an id that this caller has no instance of."""
    return RestError(
        404,
        f"Consumer instance {instance_id[:200]!r} of group {group[:200]!r} does not exist. It may have expired. Create a new one.",
        error_code=NOT_FOUND,
    )


def _conflict(sentence: str) -> RestError:
    return RestError(409, sentence, error_code=CONFLICT)


class ConsumerInstance:
    """An instance of one caller. Its operations raise RestError, and FirnError as the brokers answer."""

    def __init__(
        self,
        gateway: Gateway,
        group: str,
        instance_id: str,
        settings: InstanceSettings,
        *,
        room: Callable[[ConsumerInstance, int], bool],
    ) -> None:
        """``room`` says whether the process has room for so many partitions of this instance."""
        self.gateway: Final = gateway
        self.group: Final = group
        self.instance_id: Final = instance_id
        self.settings: Final = settings
        self.requests = 0
        """Under way."""
        self.is_reading = False
        self.closed = False
        self._room = room
        self._changing = asyncio.Lock()
        self._member: ActiveMember | None = None
        self._assigned: tuple[TopicPartition, ...] = ()
        self._tenures: dict[TopicPartition, int] = {}
        """A number for each assigned partition. A partition that goes and comes again has another one."""
        self._tenures_given = 0
        self._is_manual = False
        self._positions = Positions()
        self._cursor = 0

    # --- subscription -------------------------------------------------------------------------------------------------

    @property
    def subscription(self) -> GroupSubscription | None:
        """The topics that this instance has subscribed to, if it has."""
        return None if self._member is None else self._member.membership.subscription

    @property
    def assignment(self) -> tuple[TopicPartition, ...]:
        """The partitions that this instance reads now."""
        return self._assigned

    async def subscribe(self, wanted: GroupSubscription) -> None:
        """Become a member of the group. Raises: RestError 409, RequestRejected, BrokerUnavailable."""
        if not wanted.names and wanted.regex is None:
            await self.unsubscribe()
            return
        async with self._changing:
            self._check_open()
            if self._is_manual:
                raise _conflict(
                    "The instance has assigned partitions. Delete its subscription before it subscribes to topics."
                )
            before = self.subscription
            if before == wanted and self._member is not None and not self._member.failed:
                return
            if before is not None and (before.regex is None) != (wanted.regex is None):
                raise _conflict(
                    "The instance has a subscription of the other kind (topics, topic_pattern). Delete it before."
                )
            await self._leave()
            member = ActiveMember(self.gateway.cluster, self.group, secrets.token_urlsafe(16), wanted, self)
            self._member = member
            try:
                await member.join()
            except BaseException:
                self._member = None
                self.lost()
                raise

    async def assign(self, partitions: Sequence[TopicPartition]) -> None:
        """Read these partitions without a membership. Raises: RestError 409, 429."""
        async with self._changing:
            self._check_open()
            if self._member is not None:
                raise _conflict(
                    "The instance subscribes to topics. Delete its subscription before it assigns partitions."
                )
            if not self._room(self, len(partitions)):
                raise RestError(429, "The instances of this process have too many partitions.", error_code=42901)
            await self._commit_known(self._gone_without(partitions))
            self._has_now(dict.fromkeys(partitions))
            self._is_manual = bool(partitions)

    async def unsubscribe(self) -> None:
        """Leave the group, and read nothing. Raises: nothing that the broker answers."""
        async with self._changing:
            await self._leave()

    async def close(self, *, commit: bool) -> None:
        """Leave the group for good. ``commit``: with auto commit, the client has all that was delivered."""
        self.closed = True
        if commit:
            self._positions.client_has_all()
        async with self._changing:
            await self._leave()

    async def _leave(self) -> None:
        await self._commit_known()
        member, self._member = self._member, None
        self._is_manual = False
        self.lost()
        if member is not None:
            await member.leave()

    def _check_open(self) -> None:
        if self.closed:
            raise instance_not_found(self.group, self.instance_id)

    # --- the member's partitions (``MemberOwner``) ----------------------------------------------------------------------

    async def giving_up(self, partitions: Sequence[TopicPartition]) -> None:
        await self._commit_known(partitions)

    async def taken(self, partitions: Sequence[TopicPartition], anew: Collection[TopicPartition]) -> None:
        if len(partitions) > PARTITIONS_MAX or not self._room(self, len(partitions)):
            raise LimitExceeded(
                f"The subscription gives {len(partitions)} partitions to one instance. Subscribe to fewer topics, or with more "
                "instances."
            )
        self._has_now(partitions, anew)

    def lost(self) -> None:
        self._has_now(())
        self._room(self, 0)

    def _has_now(self, partitions: Iterable[TopicPartition], anew: Collection[TopicPartition] = ()) -> None:
        """The instance has exactly these partitions. Tenures and positions of others end, and those of ``anew``."""
        for one in anew:
            self._tenures.pop(one, None)
        self._positions.forget(anew)
        tenures: dict[TopicPartition, int] = {}
        for one in partitions:
            tenure = self._tenures.get(one)
            if tenure is None:
                self._tenures_given += 1
                tenure = self._tenures_given
            tenures[one] = tenure
        self._assigned, self._tenures = tuple(tenures), tenures
        self._positions.retain(tenures)

    def _still(self, tenures: Mapping[TopicPartition, int]) -> set[TopicPartition]:
        """The partitions of which these are the tenures now."""
        return {one for one, tenure in tenures.items() if self._tenures.get(one) == tenure}

    async def ready(self, wait_ms: int) -> None:
        """Wait until a member has its partitions. Raises: RestError 409 without a subscription, and the error that ended it."""
        self._check_open()
        if self._member is not None:
            await self._member.assigned(wait_ms / 1000)
        elif not self._is_manual:
            raise _conflict("The instance has no subscription and no assignment. Give it one before.")

    # --- positions ----------------------------------------------------------------------------------------------------

    async def seek(self, positions: Mapping[TopicPartition, int]) -> None:
        """Go on at these offsets. Raises: RestError 409 for a partition that is not assigned."""
        await self._check_assigned(positions)
        self._positions.seek({one: Offset(offset) for one, offset in positions.items()})

    async def seek_to(self, partitions: Sequence[TopicPartition], moment: int) -> None:
        """Go on at the first or behind the last record (``EARLIEST``, ``LATEST``). Raises: as ``seek``, RequestRejected…"""
        await self._check_assigned(partitions)
        tenures = self._tenures_of(partitions)
        listed = await self._listed(partitions, moment)
        self._positions.seek({one: listed[one] for one in self._still(tenures)})

    def _tenures_of(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, int]:
        return {one: self._tenures[one] for one in partitions if one in self._tenures}

    async def _check_assigned(self, partitions: Iterable[TopicPartition]) -> None:
        await self.ready(self.settings.wait_ms_max)
        for partition in partitions:
            if partition not in self._tenures:
                raise _conflict(f"Partition {partition} is not assigned to the instance. Read its assignments.")

    async def _listed(self, partitions: Sequence[TopicPartition], moment: int) -> dict[TopicPartition, Offset]:
        found: dict[TopicPartition, Offset] = {}
        for start in range(0, len(partitions), SLICE):
            wanted = dict.fromkeys(partitions[start : start + SLICE], moment)
            listed = await self.gateway.cluster.list_offsets(wanted, read_committed=self.settings.read_committed)
            found |= {one: Offset(offset.offset) for one, offset in listed.items()}
        return found

    async def _begin(self, partitions: Sequence[TopicPartition]) -> None:
        """Give each partition a position: its committed offset, or where ``auto.offset.reset`` says."""
        missing = self._positions.missing(partitions)
        if not missing:
            return
        tenures = self._tenures_of(missing)
        committed = await self.gateway.groups.committed(self.group, missing)
        rest = [one for one in missing if one not in committed]
        reset: dict[TopicPartition, Offset] = {}
        if rest:
            if self.settings.reset_to is None:
                raise RequestRejected(
                    ErrorCode.OFFSET_OUT_OF_RANGE,
                    f"Group {self.group} has no committed offset in {rest[0]}, and auto.offset.reset is none.",
                )
            reset = await self._listed(rest, self.settings.reset_to)
        wanted = set(self._positions.missing(self._still(tenures)))
        self._positions.begin(
            {one: offset.offset for one, offset in committed.items() if one in wanted},
            {one: offset for one, offset in reset.items() if one in wanted},
        )

    # --- commits ------------------------------------------------------------------------------------------------------

    async def commit(self, offsets: Mapping[TopicPartition, tuple[int, str]] | None) -> None:
        """Commit these offsets with their metadata, or all positions. Raises: RequestRejected, BrokerUnavailable."""
        self._check_open()
        if offsets is None:
            self._positions.client_has_all()
            offsets = {one: (offset, "") for one, offset in self._positions.positions().items()}
        await self._commit(offsets)

    async def committed(self, partitions: Collection[TopicPartition]) -> list[tuple[TopicPartition, int, str]]:
        """The group's committed offsets, without partitions that have none. Raises: RequestRejected, BrokerUnavailable."""
        named = list(partitions)
        found: list[tuple[TopicPartition, int, str]] = []
        for start in range(0, len(named), SLICE):
            some = named[start : start + SLICE]
            offsets = await self.gateway.groups.committed(self.group, some)
            found += [(one, offsets[one].offset, offsets[one].metadata) for one in some if one in offsets]
        return found

    def _topic_id(self, partition: TopicPartition) -> UUID | None:
        """The id of a partition's topic, if the group has assigned it."""
        return None if self._member is None else self._member.topic_id(partition)

    def _identity(self) -> tuple[str, int]:
        return NO_MEMBER if self._member is None else self._member.identity

    async def _commit(self, offsets: Mapping[TopicPartition, tuple[int, str]]) -> None:
        """Commit offsets, but none of a partition that leaves the instance meanwhile: its next owner may have committed it.

        Raises: RequestRejected STALE_MEMBER_EPOCH if there is such a partition, and what the coordinator says; BrokerUnavailable.
        """
        tenures = self._tenures_of(offsets)

        def may_commit(one: TopicPartition) -> bool:
            return one not in tenures or self._tenures.get(one) == tenures[one]

        named = list(offsets.items())
        left: list[TopicPartition] = []
        for start in range(0, len(named), SLICE):
            some = named[start : start + SLICE]
            said: dict[TopicPartition, tuple[int, str]] = {}

            def of_now(
                some: Sequence[tuple[TopicPartition, tuple[int, str]]] = some,
            ) -> dict[TopicPartition, tuple[int, str]]:
                nonlocal said
                said = {one: offset for one, offset in some if may_commit(one)}
                return said

            await self.gateway.groups.commit_as(self._identity, self.group, of_now, self._topic_id)
            self._positions.was_committed({one: Offset(offset) for one, (offset, _) in said.items() if may_commit(one)})
            left += [one for one, _ in some if one not in said]
        if left:
            raise RequestRejected(
                ErrorCode.STALE_MEMBER_EPOCH,
                f"Partition {left[0]} left the instance before its offset was committed. Its next owner reads the records again.",
            )

    async def _commit_known(self, partitions: Collection[TopicPartition] | None = None) -> None:
        """With auto commit, commit the records that the client is known to have. After a failure the next commit says them."""
        if not self.settings.auto_commit:
            return
        offsets = self._positions.uncommitted(None if partitions is None else set(partitions))
        if not offsets:
            return
        try:
            await self._commit({one: (offset, "") for one, offset in offsets.items()})
        except FirnError as error:
            # The records are read again, by this member or by the next one.
            if not (isinstance(error, RequestRejected) and error.code in GONE):
                self.gateway.tell("/consumers/{group_name}/instances/{instance}/records", error)

    def _gone_without(self, partitions: Collection[TopicPartition]) -> list[TopicPartition]:
        kept = set(partitions)
        return [one for one in self._assigned if one not in kept]

    # --- reading ------------------------------------------------------------------------------------------------------

    async def read(self, wait_ms: int, bytes_max: int, held: PageBytes) -> Page:
        """The next records; none if none came in time. Positions move by ``deliver``. It excludes itself.

        ``held`` counts the keys and values. A page that gets no more bytes ends there.

        Raises: RestError 409 (another read, no subscription), 404 (deleted meanwhile), 429; RequestRejected, BrokerUnavailable,
        CorruptionError.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + wait_ms / 1000
        self._positions.client_has_all()
        await self._commit_known()
        await self.ready(wait_ms)
        with self.gateway.lanes.taken(endless=False) as lane:
            consumer = Consumer(
                self.gateway.cluster,
                max_bytes=FETCH_BYTES_MAX,
                partition_max_bytes=FETCH_BYTES_MAX,
                read_committed=self.settings.read_committed,
                reset_to=self.settings.reset_to,
                lane=lane,
            )
            async with consumer:
                page = await self._page(consumer, deadline_s, min(bytes_max, PAGE_BYTES_MAX), held)
        self._check_open()
        page.keep(self._still(page.tenures))
        return page

    def deliver(self, page: Page) -> None:
        """The page is sent now. Partitions that went meanwhile get no position from it, even if they came again."""
        page.keep(self._still(page.tenures))
        self._positions.deliver(page)

    async def _page(self, consumer: Consumer, deadline_s: float, bytes_max: int, held: PageBytes) -> Page:
        loop = asyncio.get_running_loop()
        page = Page()
        wait_s = 0.0
        looked_at = 0
        while True:
            before_bytes = page.bytes
            part = self._next_slice()
            await self._begin(part)
            part = [
                one
                for one in part
                if one in self._positions and page.tenures.setdefault(one, self._tenures[one]) == self._tenures[one]
            ]
            for one in part:
                page.starts.setdefault(one, self._positions.position(one))
            consumer.assign({one: page.ends.get(one, page.starts[one]) for one in part})
            batches = await consumer.fetch_round(max(0, int(wait_s * 1000)))
            full = await self._take(page, consumer, batches, bytes_max, held)
            looked_at += len(part)
            left_s = deadline_s - loop.time()
            self._check_open()
            if full or left_s <= 0:
                return page
            if page.bytes - before_bytes >= FETCH_BYTES_MAX // 2:
                looked_at, wait_s = 0, 0.0  # there is more at once
            elif looked_at < len(self._assigned):
                wait_s = 0.0
            elif page.records and page.bytes >= self.settings.min_bytes:
                return page
            else:
                wait_s = min(left_s, (SEVERAL_WAIT_MS if self._has_several(part) else FETCH_WAIT_MS_MAX) / 1000)
            if self._member is not None and not self._assigned:
                await self._member.assigned(left_s)

    async def _take(
        self, page: Page, consumer: Consumer, batches: Sequence[FetchedBatch], bytes_max: int, held: PageBytes
    ) -> bool:
        """Put the records of batches on a page, and move its ends. Returns: whether the page is full."""
        portion = Portion()
        asked = set(consumer.assignment)
        for batch in batches:
            if batch.partition not in asked:
                continue
            for record in await batch_records(batch, portion):
                await portion.rest_if_spent()
                size = len(record.key or b"") + len(record.value or b"")
                if page.records and (page.bytes + size > bytes_max or len(page.records) >= PAGE_RECORDS_MAX):
                    return True
                if not held.take(size):
                    return True
                page.add(batch.partition, record)
            page.ends[batch.partition] = batch.header.end_offset
        for partition in consumer.assignment:
            page.ends[partition] = consumer.position(partition)
            if portion.spent_by():
                await portion.rest()
        return page.bytes >= bytes_max

    def _next_slice(self) -> list[TopicPartition]:
        """The partitions to ask for next, in rotation."""
        assigned = self._assigned
        if len(assigned) <= SLICE:
            first = self._cursor % len(assigned) if assigned else 0
            self._cursor += 1
            return [*assigned[first:], *assigned[:first]]
        start = self._cursor % len(assigned)
        self._cursor = start + SLICE
        found = [*assigned[start : start + SLICE]]
        return [*found, *assigned[: SLICE - len(found)]]

    def _has_several(self, partitions: Sequence[TopicPartition]) -> bool:
        view = self.gateway.cluster.view
        return len({view.leader_of(one) for one in partitions}) > 1
