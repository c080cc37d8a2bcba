"""A shard of groups with its log and its time, and the requests of classic members to it."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from struct import pack
from typing import Any, TypeVar

from app.configs import BrokerConfig
from app.coordinator.partition import ProducerIdAndEpoch, ReplayedBatch
from app.coordinator.shell import Reply
from app.core.errors import ErrorCode, RequestRejected
from app.core.units import Offset, PartitionIndex, ProducerEpoch, ProducerId, TimestampMs
from app.groups.classic.classic import ClassicGroup
from app.groups.classic.classic_member import Join, Protocols, Sync
from app.groups.shard import GroupShard
from app.records.control import ControlType, EndTransactionMarker
from app.wire.apis.join_group import JoinGroupResponse
from app.wire.apis.sync_group import SyncGroupResponse
from tests.groups.bench import FakeTurn, image_of

T = TypeVar("T")

GROUP = "g"
SESSION_MS = 10_000
REBALANCE_MS = 60_000
CONFIG = BrokerConfig(group_initial_rebalance_delay_ms=3000)


def subscription(*topics: str) -> bytes:
    """What a consumer says of itself in JoinGroup, version 0."""
    encoded = [topic.encode() for topic in topics]
    names = b"".join(pack(">h", len(topic)) + topic for topic in encoded)
    return pack(">hi", 0, len(topics)) + names + pack(">i", -1)


RANGE: Protocols = (("range", subscription("t")),)
"""Of a member that reads the topic t."""


class ShardTurn(FakeTurn):
    def __init__(self) -> None:
        super().__init__()
        self.batches: list[ReplayedBatch] = []

    def append(
        self, records: Sequence[tuple[bytes, bytes | None]], *, producer: ProducerIdAndEpoch | None = None
    ) -> Any:
        super().append(records)
        producer_id, epoch = producer or (ProducerId(-1), ProducerEpoch(-1))
        return self._keep(ReplayedBatch(self._end(len(records)), producer_id, epoch, list(records), None))

    def _end(self, count: int) -> Offset:
        return Offset((self.batches[-1].end_offset if self.batches else 0) + count)

    def _keep(self, batch: ReplayedBatch) -> Offset:
        self.batches.append(batch)
        return batch.end_offset

    def mark(self, producer_id: int, *, commit: bool) -> None:
        """The marker that ends a transaction."""
        kind = ControlType.COMMIT if commit else ControlType.ABORT
        end = self._end(1)
        marker = EndTransactionMarker(
            kind, 0, ProducerId(producer_id), ProducerEpoch(0), Offset(end - 1), TimestampMs(self.now_ms)
        )
        self._keep(ReplayedBatch(end, ProducerId(producer_id), ProducerEpoch(0), (), marker))


class ShardBench:
    """One shard. Answers are given at once: everything is stored."""

    def __init__(self, config: BrokerConfig = CONFIG, seed: int = 3) -> None:
        self.config = config
        self.image = image_of({"t": 100, "u": 100})
        self.turn = ShardTurn()
        self._rng = random.Random(seed)
        self.shard = GroupShard(PartitionIndex(0), lambda: self.config, self._rng, lambda: self.image)
        self.shard.loaded(self.turn)

    @property
    def group(self) -> ClassicGroup:
        found = self.shard.groups[GROUP]
        assert isinstance(found, ClassicGroup)
        return found

    def do(self, event: Callable[[GroupShard, ShardTurn], T]) -> T:
        """An event, and the answers that it gives."""
        try:
            return event(self.shard, self.turn)
        finally:
            self._give_answers()

    def code(self, event: Callable[[GroupShard, ShardTurn], object]) -> ErrorCode:
        """An event's code."""
        try:
            self.do(event)
        except RequestRejected as error:
            return error.code
        return ErrorCode.NONE

    def _give_answers(self) -> None:
        answers, self.turn.answers = self.turn.answers, []
        for reply, answer in answers:
            reply.put(answer)

    def advance(self, delay_ms: int) -> None:
        """Let time pass, with what is due on the way."""
        end_ms = self.turn.now_ms + delay_ms
        while True:
            next_ms = self.turn.timers.next_ms()
            if next_ms is None or next_ms > end_ms:
                break
            self.turn.now_ms = max(self.turn.now_ms, next_ms)
            key = self.turn.timers.pop_due(self.turn.now_ms)
            if key is not None:
                self.shard.due(self.turn, key)
                self._give_answers()
        self.turn.now_ms = end_ms

    def restart(self) -> None:
        """Another coordinator takes over, with what is in the log."""
        self.shard.unloaded(self.turn)
        self._give_answers()
        batches = self.turn.batches
        now_ms, self.turn = self.turn.now_ms, ShardTurn()
        self.turn.now_ms = now_ms
        self.turn.batches = batches
        self.shard = GroupShard(PartitionIndex(0), lambda: self.config, self._rng, lambda: self.image)
        for batch in batches:
            self.shard.load(batch)
        self.shard.loaded(self.turn)

    # --- requests -----------------------------------------------------------------------------------------------------

    def join(
        self,
        member_id: str = "",
        *,
        instance_id: str | None = None,
        protocols: Protocols = RANGE,
        protocol_type: str = "consumer",
        session_ms: int = SESSION_MS,
        rebalance_ms: int = REBALANCE_MS,
        requires_member_id: bool = False,
        can_skip_assignment: bool = True,
        client_id: str = "client",
    ) -> Reply[JoinGroupResponse]:
        reply: Reply[JoinGroupResponse] = Reply()
        join = Join(
            member_id,
            instance_id,
            protocol_type,
            protocols,
            session_ms,
            rebalance_ms,
            client_id,
            "/127.0.0.1",
            requires_member_id,
            can_skip_assignment,
        )

        def event(shard: GroupShard, turn: ShardTurn) -> None:
            shard.join(turn, GROUP, join, reply)

        self.do(event)
        return reply

    def sync(
        self,
        member_id: str,
        generation: int,
        assignments: Sequence[tuple[str, bytes]] = (),
        *,
        instance_id: str | None = None,
        protocol_name: str | None = None,
    ) -> Reply[SyncGroupResponse]:
        """Raises: RequestRejected."""
        reply: Reply[SyncGroupResponse] = Reply()
        sync = Sync(member_id, instance_id, generation, None, protocol_name, assignments)
        self.do(lambda shard, turn: shard.sync(turn, GROUP, sync, reply))
        return reply

    def heartbeat(self, member_id: str, generation: int, instance_id: str | None = None) -> ErrorCode:
        return self.code(lambda shard, turn: shard.heartbeat(turn, GROUP, member_id, instance_id, generation))

    def leave(self, *members: tuple[str, str | None]) -> list[ErrorCode]:
        return self.do(lambda shard, turn: shard.leave(turn, GROUP, members))

    def commit(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        member_id: str = "",
        generation: int = -1,
        instance_id: str | None = None,
        producer_id: int | None = None,
        retention_ms: int = -1,
        api_version: int = 8,
        group_id: str = GROUP,
    ) -> ErrorCode:
        """Commit an offset; its code."""
        producer = None if producer_id is None else ProducerIdAndEpoch(ProducerId(producer_id), ProducerEpoch(0))

        def event(shard: GroupShard, turn: ShardTurn) -> None:
            commits = [(topic, [(partition, offset, -1, None)])]
            group = shard.check_commit(
                group_id,
                member_id,
                instance_id,
                generation,
                transactional=producer is not None,
                api_version=api_version,
                places=lambda: [(topic, partition)],
            )
            shard.commit(turn, group_id, group, member_id, commits, retention_ms=retention_ms, producer=producer)

        return self.code(event)

    def committed(self, group_id: str = GROUP) -> dict[tuple[str, int], int]:
        """Offsets by topic and partition."""
        return {
            (topic, partition): found.offset
            for topic, partitions in self.shard.offsets.topics(group_id).items()
            for partition, found in partitions.items()
        }

    def end_transaction(self, producer_id: int, *, commit: bool) -> None:
        self.turn.mark(producer_id, commit=commit)
        self.shard.complete_transaction(producer_id, commit=commit)

    # --- whole conversations ------------------------------------------------------------------------------------------

    def join_all(self, count: int, session_ms: int = SESSION_MS) -> list[JoinGroupResponse]:
        """New members join an empty group, and its first rebalance is over."""
        replies = [self.join(session_ms=session_ms) for _ in range(count)]
        self.advance(self.config.group_initial_rebalance_delay_ms * (count + 1))
        return [answered(reply) for reply in replies]

    def stable(self, count: int = 2, session_ms: int = SESSION_MS) -> list[JoinGroupResponse]:
        """A group whose members have their assignments, which are their own ids; the leader first."""
        joined = self.join_all(count, session_ms)
        joined.sort(key=lambda answer: answer.member_id != answer.leader)
        assignments = [(answer.member_id, answer.member_id.encode()) for answer in joined]
        replies = [
            self.sync(answer.member_id, answer.generation_id, assignments if answer is joined[0] else ())
            for answer in reversed(joined)
        ]
        for answer, reply in zip(reversed(joined), replies, strict=True):
            assert answered(reply).assignment == answer.member_id.encode()
        return joined


def answered(reply: Reply[T]) -> T:
    """What a request was answered, which it must have been."""
    assert reply.answer is not None
    return reply.answer
