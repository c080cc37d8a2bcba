"""Appends on condition that the partition was read to its end (ADR 0043, EO18), through the client to real brokers."""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from app.client.cluster import ClusterClient
from app.client.conditional_appends import (
    Appended,
    ConditionalWriter,
    EndMoved,
    SeenEnd,
    append_in_transaction,
    partition_end,
)
from app.client.connection import KafkaConnection
from app.client.transactional_batches import Row, write_batches
from app.client.transactions import begin_transaction, end_transaction
from app.configs.broker import STANDARD_AUTHORIZER
from app.core.errors import BrokerUnavailable, ErrorCode, FirnError, RequestRejected, StorageFull
from app.core.units import LeaderEpoch, Offset, PartitionIndex, TimestampMs, TopicPartition
from app.handlers.produce import conditional
from app.hot.log import PartitionLog
from app.metadata.image.records import APPEND_LEVEL
from app.records.builder import build_batch
from app.security.acls import Operation, ResourceType
from app.wire.apikeys import ApiKey
from app.wire.apis.delete_topics import DeleteTopicsRequest, DeleteTopicState
from app.wire.private import AppendRequest, AppendResponse, pack, unpack
from tests.broker.guarded import ADMIN, ALICE, Guarded
from tests.handlers.conversation import Talk, batch, talk
from tests.support.broker import RunningBroker, running_broker
from tests.support.several import cluster_on, member, unfenced
from tests.support.waiting import until

T0 = TopicPartition("t", PartitionIndex(0))
MS = 1_790_000_000_000


@asynccontextmanager
async def open_broker(path: Path, **settings: Any) -> AsyncIterator[RunningBroker]:
    async with running_broker(path, **{"new_level": APPEND_LEVEL} | settings) as broker:
        await until(lambda: unfenced(broker))
        yield broker


@asynccontextmanager
async def client_of(*brokers: RunningBroker, retry_budget_ms: int = 20_000) -> AsyncIterator[ClusterClient]:
    bootstrap = [("127.0.0.1", broker.port) for broker in brokers]
    async with ClusterClient(bootstrap, rng=random.Random(1), retry_budget_ms=retry_budget_ms) as cluster:
        yield cluster


def rows(*values: str) -> list[Row]:
    return [(TimestampMs(MS), None, value.encode(), ()) for value in values]


def place(seen: SeenEnd) -> tuple[int, int]:
    return seen.end, seen.epoch


async def test_a_batch_is_appended_behind_the_end_that_was_read_alone(tmp_path: Path) -> None:
    async with open_broker(tmp_path) as broker, client_of(broker) as cluster:
        await broker.create_topic("t", 1)
        log = broker.log("t", 0)
        writer, other = ConditionalWriter(cluster), ConditionalWriter(cluster)
        empty = await partition_end(cluster, T0)
        assert place(empty) == (0, -1)
        first = await writer.append(T0, empty, rows("a", "b"))
        assert (first.batch.base_offset, first.end.end) == (0, 2)
        assert await partition_end(cluster, T0) == first.end
        for stale in (empty, first.end._replace(end=Offset(1)), first.end._replace(end=Offset(3))):
            with pytest.raises(EndMoved) as moved:
                await other.append(T0, stale, rows("late"))
            assert moved.value.end == first.end
        assert log.log_end_offset == 2
        second = await other.append(T0, first.end, rows("c"))
        assert (second.batch.base_offset, log.log_end_offset) == (2, 3)


async def test_of_racing_writers_one_wins_each_offset(tmp_path: Path) -> None:
    async with open_broker(tmp_path) as broker, client_of(broker) as one, client_of(broker) as other:
        await broker.create_topic("t", 1)
        writers = [ConditionalWriter(cluster) for cluster in (one, other) * 3]
        seen, rng, winners = await partition_end(one, T0), random.Random(2), set()
        for number in range(20):
            racing = rng.sample(range(len(writers)), len(writers))
            outcomes = await asyncio.gather(
                *(writers[name].append(T0, seen, rows(f"{name} at {number}")) for name in racing),
                return_exceptions=True,
            )
            won = [(name, one) for name, one in zip(racing, outcomes, strict=True) if isinstance(one, Appended)]
            assert [one.batch.base_offset for _, one in won] == [number], outcomes
            assert sum(isinstance(one, EndMoved) for one in outcomes) == len(writers) - 1
            winners.add(won[0][0])
            seen = won[0][1].end
        assert broker.log("t", 0).log_end_offset == 20
        assert len(winners) > 1


async def test_markers_are_no_data_and_records_of_open_transactions_are(tmp_path: Path) -> None:
    async with open_broker(tmp_path) as broker, client_of(broker) as cluster:
        await broker.create_topic("t", 1)
        log, writer = broker.log("t", 0), ConditionalWriter(cluster)
        before = (await writer.append(T0, await partition_end(cluster, T0), rows("a"))).end
        transaction = await begin_transaction(cluster, "x", timeout_ms=60_000)
        open_end = (await write_batches(cluster, transaction, {T0: rows("b")}))[T0].base_offset + 1
        assert await partition_end(cluster, T0) == before, "a reader of committed records has not read more"
        with pytest.raises(EndMoved) as moved:
            await writer.append(T0, before, rows("c"))
        assert moved.value.end == before
        after = await end_transaction(cluster, transaction, commit=True)
        await until(lambda: log.log_end_offset == open_end + 1)
        with pytest.raises(EndMoved):
            await writer.append(T0, before, rows("c"))
        behind_data = before._replace(end=Offset(open_end))
        own = await append_in_transaction(cluster, after, T0, behind_data, rows("d"))
        assert own.base_offset == open_end + 1, "the marker in between is no data"
        await end_transaction(cluster, after, commit=True)
        await until(lambda: log.log_end_offset == own.base_offset + 2)
        end = await partition_end(cluster, T0)
        assert end.end == log.log_end_offset
        assert (await writer.append(T0, end, rows("e"))).batch.base_offset == end.end


async def test_a_marker_that_comes_after_the_look_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_broker(tmp_path) as broker, client_of(broker) as cluster:
        await broker.create_topic("t", 1)
        log, writer = broker.log("t", 0), ConditionalWriter(cluster)
        transaction = await begin_transaction(cluster, "x", timeout_ms=60_000)
        await write_batches(cluster, transaction, {T0: rows("a")})
        seen = SeenEnd(log.topic_id, Offset(1), log.epoch_of(Offset(0)))
        look, looks = conditional.end_without_data, []

        async def looks_before(log: PartitionLog, start: int) -> Offset | None:
            found = await look(log, start)
            if not looks:
                await end_transaction(cluster, transaction, commit=True)
                await until(lambda: log.log_end_offset == 2)
            looks.append(found)
            return found

        monkeypatch.setattr(conditional, "end_without_data", looks_before)
        assert (await writer.append(T0, seen, rows("b"))).batch.base_offset == 2
        assert looks == [1, 2]


async def test_what_was_looked_at_in_an_earlier_leadership_is_looked_at_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_broker(tmp_path) as broker, client_of(broker) as cluster:
        await broker.create_topic("t", 1)
        partition = broker.node.partitions.table.get("t", 0)
        assert partition is not None
        writer, start = ConditionalWriter(cluster), await partition_end(cluster, T0)
        look, looks = conditional.end_without_data, []

        async def leads_anew(log: PartitionLog, start: int) -> Offset | None:
            found = await look(log, start)
            if not looks:  # between two leaderships another leader may have put records at the same offsets
                partition.leave_leadership()
            looks.append(found)
            return found

        monkeypatch.setattr(conditional, "end_without_data", leads_anew)
        assert (await writer.append(T0, start, rows("a"))).batch.base_offset == 0
        assert looks == [0, 0]


async def test_no_batch_is_appended_if_the_partition_was_shut_after_the_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_broker(tmp_path) as broker, client_of(broker, retry_budget_ms=500) as cluster:
        await broker.create_topic("t", 1)
        writer, start = ConditionalWriter(cluster), await partition_end(cluster, T0)
        required, log = conditional.require_partition, broker.log("t", 0)
        looks: list[int] = []
        look = conditional.end_without_data

        async def looked(log: PartitionLog, start: int) -> Offset | None:
            looks.append(start)
            return await look(log, start)

        def shut(*where: Any) -> Any:
            if looks:
                raise RequestRejected(ErrorCode.NOT_LEADER_OR_FOLLOWER, "This broker is isolated.")
            return required(*where)

        monkeypatch.setattr(conditional, "end_without_data", looked)
        monkeypatch.setattr(conditional, "require_partition", shut)
        with pytest.raises(FirnError):
            await writer.append(T0, start, rows("a"))
        assert looks
        assert log.log_end_offset == 0


async def test_a_repeat_of_an_append_whose_answer_was_lost_gets_its_offset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_broker(tmp_path) as broker, client_of(broker) as cluster:
        await broker.create_topic("t", 1)
        writer, start = ConditionalWriter(cluster), await partition_end(cluster, T0)
        ask, lost = KafkaConnection.request, []

        async def loses(self: KafkaConnection, key: ApiKey, message: Any, **more: Any) -> Any:
            answer = await ask(self, key, message, **more)
            if key is ApiKey.FIRN_APPEND and not lost:
                lost.append(answer)
                raise BrokerUnavailable("lost")
            return answer

        monkeypatch.setattr(KafkaConnection, "request", loses)
        appended = await writer.append(T0, start, rows("a"))
        assert (appended.batch.base_offset, broker.log("t", 0).log_end_offset, len(lost)) == (0, 1, 1)
        entries = broker.log("t", 0).producers.entries
        assert (await writer.append(T0, appended.end, rows("b"))).batch.base_offset == 1
        assert len(entries) == 2, "an append of two tries gives its producer id up"
        with pytest.raises(EndMoved):
            await writer.append(T0, start, rows("c"))
        assert (await writer.append(T0, (await partition_end(cluster, T0)), rows("d"))).batch.base_offset == 2
        assert len(entries) == 2, "and one of one try does not"


async def test_an_append_succeeds_though_the_log_has_lost_the_last_one_of_its_producer(tmp_path: Path) -> None:
    async with open_broker(tmp_path) as broker, client_of(broker) as cluster:
        await broker.create_topic("t", 1)
        writer = ConditionalWriter(cluster)
        first = await writer.append(T0, await partition_end(cluster, T0), rows("a"))
        [identity] = writer._at_rest
        identity.next[T0] += 1  # of an append that was answered, and that no log has any more
        assert (await writer.append(T0, first.end, rows("b"))).batch.base_offset == 1
        assert len(broker.log("t", 0).producers.entries) == 2


async def test_a_refused_batch_keeps_its_producer(tmp_path: Path) -> None:
    async with open_broker(tmp_path) as broker, client_of(broker) as cluster:
        await broker.create_topic("t", 1, max_message_bytes="1000")
        writer = ConditionalWriter(cluster)
        first = await writer.append(T0, await partition_end(cluster, T0), rows("a"))
        with pytest.raises(RequestRejected) as refused:
            await writer.append(T0, first.end, rows("x" * 2_000))
        assert refused.value.code is ErrorCode.MESSAGE_TOO_LARGE
        await writer.append(T0, first.end, rows("b"))
        assert len(broker.log("t", 0).producers.entries) == 1


async def test_the_operator_is_told_of_a_conditional_append_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_broker(tmp_path) as broker, client_of(broker, retry_budget_ms=100) as cluster:
        await broker.create_topic("t", 1)
        writer, start = ConditionalWriter(cluster), await partition_end(cluster, T0)

        async def fails(*_: Any) -> Any:
            raise StorageFull("There is no room left.")

        monkeypatch.setattr(conditional, "append_prepared", fails)
        before = broker.node.context.metrics.produce_errors.value
        with pytest.raises(FirnError):
            await writer.append(T0, start, rows("a"))
        assert broker.node.context.metrics.produce_errors.value > before
        assert any("There is no room left." in line for line in broker.lines)


async def test_another_history_below_the_end_is_refused(tmp_path: Path) -> None:
    async with open_broker(tmp_path) as broker, client_of(broker) as cluster:
        await broker.create_topic("t", 1)
        log, writer = broker.log("t", 0), ConditionalWriter(cluster)
        seen = (await writer.append(T0, await partition_end(cluster, T0), rows("a", "b"))).end
        # A later leader had only the first record, and wrote another second one.
        log.leader_epoch = LeaderEpoch(log.leader_epoch + 1)
        log._epochs.truncate_from_end(Offset(1))
        log._epochs.assign(log.leader_epoch, Offset(1))
        with pytest.raises(EndMoved) as moved:
            await writer.append(T0, seen, rows("c"))
        assert "was lost" in str(moved.value)
        assert moved.value.end is not None
        assert place(moved.value.end) == (2, log.leader_epoch)
        assert (await writer.append(T0, moved.value.end, rows("c"))).batch.base_offset == 2


async def test_a_topic_that_was_made_anew_is_another_one(tmp_path: Path) -> None:
    async with open_broker(tmp_path) as broker, client_of(broker) as cluster:
        await broker.create_topic("t", 1)
        writer, start = ConditionalWriter(cluster), await partition_end(cluster, T0)
        async with talk(broker.port) as client:
            asked = DeleteTopicsRequest(topics=[DeleteTopicState(name="t")])
            assert not (await client.ask(ApiKey.DELETE_TOPICS, 6, asked)).responses[0].error_code
        await broker.create_topic("t", 1)
        with pytest.raises(EndMoved, match="made anew"):
            await writer.append(T0, start, rows("a"))
        assert broker.log("t", 0).log_end_offset == 0


async def test_an_older_cluster_says_which_level_it_needs(tmp_path: Path) -> None:
    async with open_broker(tmp_path, new_level=APPEND_LEVEL - 1) as broker, client_of(broker) as cluster:
        await broker.create_topic("t", 1)
        start = SeenEnd(broker.log("t", 0).topic_id, Offset(0), LeaderEpoch(-1))
        for work in (partition_end(cluster, T0), ConditionalWriter(cluster).append(T0, start, rows("a"))):
            with pytest.raises(RequestRejected, match=f"firn.version={APPEND_LEVEL}") as refused:
                await work
            assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION


# --- a request that no client of Firn sends -------------------------------------------------------------------------------


async def ask(client: Talk, request: AppendRequest) -> AppendResponse:
    return unpack(AppendResponse, await client.ask(ApiKey.FIRN_APPEND, 0, pack(request)))


async def test_the_caller_needs_the_rights_of_a_producer(tmp_path: Path) -> None:
    settings = {"super_users": f"User:ANONYMOUS;{ADMIN}", "authorizer_class_name": STANDARD_AUTHORIZER}
    async with open_broker(tmp_path, **settings) as broker:
        await broker.create_topic("t", 1)
        guarded, topic_id = Guarded(broker), broker.log("t", 0).topic_id
        look, append = AppendRequest(topic_id, 0), AppendRequest(topic_id, 0, bytes(batch()), 0, -1, "", 5_000)
        in_transaction = AppendRequest(topic_id, 0, bytes(batch()), 0, -1, "x", 5_000)
        async with guarded.as_user(ALICE) as alice:
            for asked in (look, append):
                assert (await ask(alice, asked)).error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
        await guarded.allow((Operation.WRITE, ResourceType.TOPIC, "t"))
        async with guarded.as_user(ALICE) as alice:
            refused = await ask(alice, in_transaction)
            assert refused.error_code == ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
            assert (await ask(alice, look)).end == 0
            assert (await ask(alice, append)).base_offset == 0


async def test_records_are_checked_as_those_of_a_produce_request(tmp_path: Path) -> None:
    async with open_broker(tmp_path) as broker, talk(broker.port) as client:
        await broker.create_topic("t", 1, max_message_bytes="1000")
        topic_id = broker.log("t", 0).topic_id
        good = bytes(batch())
        for records, code in (
            (good + good, ErrorCode.INVALID_RECORD),
            (good[:-1] + b"x", ErrorCode.CORRUPT_MESSAGE),
            (b"x", ErrorCode.CORRUPT_MESSAGE),
            (build_batch(rows("x" * 2_000)), ErrorCode.MESSAGE_TOO_LARGE),
        ):
            assert (await ask(client, AppendRequest(topic_id, 0, records, 0, -1, "", 5_000))).error_code == code
        strange = AppendRequest(UUID(int=5), 0, good, 0, -1, "", 5_000)
        assert (await ask(client, strange)).error_code == ErrorCode.UNKNOWN_TOPIC_ID
        nowhere = AppendRequest(topic_id, 3, good, 0, -1, "", 5_000)
        assert (await ask(client, nowhere)).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        for end in (1, 2**62):
            assert (await ask(client, AppendRequest(topic_id, 0, good, end, 0, "", 5_000))).moved
        assert broker.log("t", 0).log_end_offset == 0
        client.send(ApiKey.FIRN_APPEND, 0, pack(AppendRequest(topic_id, 0, good, -5, 0)))
        assert await client.closed()


async def test_one_append_of_a_connection_is_served_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with open_broker(tmp_path) as broker, talk(broker.port) as client:
        await broker.create_topic("t", 1)
        may_go_on, serving = asyncio.Event(), []
        look = conditional.end_without_data

        async def slowly(log: PartitionLog, start: int) -> Offset | None:
            serving.append(start)
            await may_go_on.wait()
            return await look(log, start)

        monkeypatch.setattr(conditional, "end_without_data", slowly)
        asked = AppendRequest(broker.log("t", 0).topic_id, 0, bytes(batch()), 0, -1, "", 5_000)
        sent = [client.send(ApiKey.FIRN_APPEND, 0, pack(asked)) for _ in range(3)]
        await until(lambda: bool(serving))
        await asyncio.sleep(0)
        assert serving == [0]
        may_go_on.set()
        await until(lambda: len(serving) == len(sent))


@pytest.mark.parametrize("settings", [{"compression_type": "gzip"}, {"message_timestamp_type": "LogAppendTime"}])
async def test_settings_of_the_topic_hold_for_conditional_appends(tmp_path: Path, settings: dict[str, str]) -> None:
    async with open_broker(tmp_path) as broker, client_of(broker) as cluster:
        await broker.create_topic("t", 1, **settings)
        writer = ConditionalWriter(cluster)
        first = await writer.append(T0, await partition_end(cluster, T0), rows(*"abc"))
        assert (first.batch.base_offset, first.end.end) == (0, 3)
        assert (first.batch.log_append_ms >= 0) == ("message_timestamp_type" in settings)
        with pytest.raises(EndMoved):
            await writer.append(T0, first.end._replace(end=Offset(2)), rows("d"))
        assert (await writer.append(T0, first.end, rows("d"))).batch.base_offset == 3


# --- durability, and other leaders ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durability", ["disk", "object"])
async def test_an_append_is_stored_as_its_topic_asks(tmp_path: Path, durability: str) -> None:
    settings: dict[str, Any] = {"broker_heartbeat_interval_ms": 50}
    async with member(tmp_path, 1, new_level=APPEND_LEVEL, **settings) as broker:
        await until(lambda: unfenced(broker))
        await broker.node.membership.controller.create_topic("t", 1, {"firn.durability": durability}, 1)
        async with client_of(broker) as cluster:
            writer, seen = ConditionalWriter(cluster), await partition_end(cluster, T0)
            for number in range(3):
                appended = await writer.append(T0, seen, rows(f"{number}"))
                assert broker.log("t", 0).stored_end_offset >= appended.end.end == number + 1
                with pytest.raises(EndMoved):
                    await writer.append(T0, seen, rows("late"))
                seen = appended.end
        await broker.kill()
    if durability == "object":
        shutil.rmtree(tmp_path / "broker-1")
    async with member(tmp_path, 1, new_level=APPEND_LEVEL, take_over=durability == "object", **settings) as broker:
        await until(lambda: unfenced(broker))
        async with client_of(broker) as cluster:
            assert place(await partition_end(cluster, T0)) == place(seen)
            writer = ConditionalWriter(cluster)
            assert (await writer.append(T0, seen, rows("3"))).batch.base_offset == 3
            with pytest.raises(EndMoved):
                await writer.append(T0, seen, rows("late"))


async def test_another_leader_appends_at_the_end_that_was_read_or_not_at_all(tmp_path: Path) -> None:
    async with cluster_on(tmp_path, 3, new_level=APPEND_LEVEL) as brokers:
        await brokers[0].node.membership.controller.create_topic("t", 1, {"min.insync.replicas": "2"}, 3)
        async with client_of(*brokers, retry_budget_ms=60_000) as cluster:
            writers = [ConditionalWriter(cluster) for _ in range(2)]
            seen = await partition_end(cluster, T0)
            for number in range(12):
                if number == 6:
                    leader = await cluster.leader_id(T0)
                    (victim,) = [one for one in brokers if one.node.context.node_id == leader]
                    killing = asyncio.create_task(victim.kill())
                outcomes = await asyncio.gather(
                    *(one.append(T0, seen, rows(f"{number}")) for one in writers), return_exceptions=True
                )
                won = [one for one in outcomes if isinstance(one, Appended)]
                assert [one.batch.base_offset for one in won] == [number], outcomes
                seen = won[0].end
            await killing
            assert seen.epoch > 0
            assert (await partition_end(cluster, T0)) == seen
