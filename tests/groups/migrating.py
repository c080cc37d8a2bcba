"""Members of both protocols in one group."""

from __future__ import annotations

from dataclasses import replace
from struct import pack
from typing import Any

from app.coordinator.shell import Reply
from app.core.errors import ErrorCode, RequestRejected
from app.groups.classic.classic import ClassicGroup
from app.groups.classic.embedded import decode_assignment, decode_subscription, encode_assignment
from app.groups.consumer.consumer import ClientInfo, check_heartbeat
from app.groups.consumer.subscriptions import TopicPattern
from app.wire.apis.consumer_group_heartbeat import ConsumerGroupHeartbeatResponse
from tests.groups.bench import image_of, topic_id
from tests.groups.consumers import Consumer
from tests.groups.shards import CONFIG, GROUP, ShardBench

TOPIC, PARTITIONS = "t", 6
ID = topic_id(TOPIC)


def said(owned: frozenset[int] = frozenset(), *, version: int = 3) -> bytes:
    """A subscription to the topic t, with what its sender owns of it."""
    name = pack(">h", 1) + b"t"
    data = pack(">hi", version, 1) + name + pack(">i", -1)
    if version >= 1:
        data += pack(">i", 1 if owned else 0)
        if owned:
            data += name + pack(">i", len(owned)) + b"".join(pack(">i", each) for each in sorted(owned))
    if version >= 2:
        data += pack(">i", -1)
    if version >= 3:
        data += pack(">h", -1)
    return data


class OldConsumer:
    """A client of the classic protocol.

    One that knows the cooperative protocol only names what it owns and gives up what is taken from it; one that knows others too
    is not cooperative: it gives up everything before it joins.
    """

    def __init__(
        self,
        bench: ShardBench,
        *,
        instance_id: str | None = None,
        protocols: tuple[str, ...] = ("cooperative-sticky",),
    ) -> None:
        self.bench = bench
        self.instance_id = instance_id
        self.protocols = protocols
        self.member_id = ""
        self.generation = -1
        self.owned: frozenset[int] = frozenset()
        self.joining: Reply[Any] | None = None
        self.syncing: Reply[Any] | None = None
        self.refused = False
        """For want of a protocol that all know."""

    def send_join(self) -> None:
        self.syncing = None
        if len(self.protocols) > 1:
            self.owned = frozenset()
        try:
            self.joining = self.bench.join(
                self.member_id,
                instance_id=self.instance_id,
                protocols=tuple((name, said(self.owned)) for name in self.protocols),
            )
        except RequestRejected as error:
            self._obey(error.code)

    def lose_connection(self) -> None:
        """What it waits for is never answered, so it joins again, as the same member."""
        if self.joining is not None or self.syncing is not None:
            self.joining = self.syncing = None
            self.generation = -1

    def live(self) -> None:
        """One step of the client: go on with what was answered, or send a heartbeat."""
        if self.joining is not None:
            if self.joining.answer is None:
                return
            self._joined(self.joining.answer)
        elif self.syncing is not None:
            if self.syncing.answer is None:
                return
            self._synced(self.syncing.answer)
        elif self.generation < 0:
            self.send_join()
        else:
            self._obey(self.bench.heartbeat(self.member_id, self.generation, self.instance_id))

    def _joined(self, answer: Any) -> None:
        self.joining = None
        if answer.error_code:
            self._obey(ErrorCode(answer.error_code))
            return
        self.member_id, self.generation = answer.member_id, answer.generation_id
        self.refused = False
        assignments = []
        if answer.leader == self.member_id:
            assignments = assign_cooperatively(answer.members)
        try:
            self.syncing = self.bench.sync(self.member_id, self.generation, assignments, instance_id=self.instance_id)
        except RequestRejected as error:
            self._obey(error.code)

    def _synced(self, answer: Any) -> None:
        self.syncing = None
        if answer.error_code:
            self._obey(ErrorCode(answer.error_code))
            return
        told = frozenset(p for _, partitions in decode_assignment(answer.assignment) for p in partitions)
        lost = self.owned - told
        self.owned = told
        if lost:
            self.send_join()  # it has given them up, and says so

    def _obey(self, code: ErrorCode) -> None:
        match code:
            case ErrorCode.NONE:
                pass
            case ErrorCode.REBALANCE_IN_PROGRESS:
                self.send_join()
            case ErrorCode.UNKNOWN_MEMBER_ID | ErrorCode.ILLEGAL_GENERATION:
                self.owned, self.generation = frozenset(), -1
                if code is ErrorCode.UNKNOWN_MEMBER_ID:
                    self.member_id = ""
                self.send_join()
            case ErrorCode.INCONSISTENT_GROUP_PROTOCOL:
                # A coordinator that has just loaded a classic group knows one protocol of each member, until they join again.
                self.owned, self.generation = frozenset(), -1
                self.refused = True
            case _:
                raise AssertionError(code)


def assign_cooperatively(members: Any) -> list[tuple[str, bytes]]:
    """What the leader does: balance, and give nobody what another still has."""
    owned = {
        each.member_id: {p for _, partitions in decode_subscription(each.metadata).owned for p in partitions}
        for each in members
    }
    names = sorted(owned)
    wanted = {name: {p for p in range(PARTITIONS) if names[p % len(names)] == name} for name in names}
    taken = set().union(*owned.values())
    return [
        (name, encode_assignment(1, [(TOPIC, tuple(sorted((wanted[name] & owned[name]) | (wanted[name] - taken))))]))
        for name in names
    ]


class NewConsumer(Consumer):
    def __init__(self, bench: ShardBench, member_id: str, **other: Any) -> None:
        super().__init__(member_id, {TOPIC}, **other)
        self.bench = bench

    def send(self, **changes: Any) -> ConsumerGroupHeartbeatResponse:
        request = replace(self.request(), group_id=GROUP, **changes)
        check_heartbeat(request, 1, CONFIG.group_consumer_assignors)
        answer = self.bench.do(lambda shard, turn: shard.consumer_heartbeat(turn, request, ClientInfo("c", "/h")))
        assert not isinstance(answer, TopicPattern)
        return answer

    def go_on(self) -> None:
        try:
            self.hear(self.send())
        except RequestRejected as error:
            # The last of the new protocol may have been given up: then the others' group is a classic one.
            gone = error.code is ErrorCode.GROUP_ID_NOT_FOUND and isinstance(
                self.bench.shard.groups[GROUP], ClassicGroup
            )
            # A static member that vanished keeps its instance id for as long as its session lasts.
            again = (ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.UNRELEASED_INSTANCE_ID)
            if error.code not in again and not gone:
                raise
            self.fenced()

    @property
    def partitions(self) -> frozenset[int]:
        return self.owned.get(ID, frozenset())


def make_bench(**settings_: Any) -> ShardBench:
    bench = ShardBench(replace(CONFIG, **settings_))
    bench.image = image_of({TOPIC: PARTITIONS})
    return bench


def is_settled(old: list[OldConsumer], new: list[NewConsumer]) -> bool:
    parts = [consumer.owned for consumer in old] + [consumer.partitions for consumer in new]
    busy = any(consumer.joining or consumer.syncing for consumer in old)
    return not busy and sorted(p for part in parts for p in part) == list(range(PARTITIONS)) and all(parts)


def settle(bench: ShardBench, old: list[OldConsumer], new: list[NewConsumer]) -> None:
    for _ in range(60):
        for one in old:
            one.live()
        for other in new:
            other.go_on()
        bench.advance(500)
        check_owned_once(old, new)
        if is_settled(old, new):
            return
    raise AssertionError([one.owned for one in old] + [other.partitions for other in new])


def check_owned_once(old: list[OldConsumer], new: list[NewConsumer]) -> None:
    owned = [p for consumer in old for p in consumer.owned] + [p for consumer in new for p in consumer.partitions]
    assert len(set(owned)) == len(owned), owned


def kind(bench: ShardBench) -> type:
    return type(bench.shard.groups[GROUP])
