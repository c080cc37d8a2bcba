"""librdkafka, through confluent-kafka: producing, reading by assignment from both tiers, and administration."""

from __future__ import annotations

import contextlib
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import pytest

from tests.interop.serving import COLD_CONFIGS, EARLIEST_LOCAL, FACTOR, Served, create_topic, offset_of, wait_until_cold
from tests.support.waiting import block_until

confluent_kafka = pytest.importorskip("confluent_kafka", reason="confluent-kafka is not here")

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition  # noqa: E402
from confluent_kafka.admin import (  # noqa: E402
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

pytestmark = pytest.mark.interop

TIMEOUT_S = 60
MIDDAY = 1_700_000_000_000


class Sender:
    """A producer and what became of its messages."""

    def __init__(self, firn: Served, **settings: Any) -> None:
        self.delivered: list[Message] = []
        self.errors: list[KafkaError] = []
        named = {key.replace("_", "."): value for key, value in settings.items()}
        self.producer = Producer(
            {"bootstrap.servers": firn.bootstrap, "linger.ms": 5, "error_cb": self.errors.append, **named}
        )

    def send(self, topic: str, *values: bytes, **fields: Any) -> None:
        for value in values:
            self.producer.produce(topic, value, on_delivery=self._delivered, **fields)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        assert error is None, error
        self.delivered.append(message)

    def flush(self) -> list[Message]:
        assert self.producer.flush(TIMEOUT_S) == 0
        assert not self.errors
        return self.delivered


@contextlib.contextmanager
def consumer(firn: Served, **settings: Any) -> Iterator[Consumer]:
    errors: list[KafkaError] = []
    named = {key.replace("_", "."): value for key, value in settings.items()}
    made = Consumer(
        {
            "bootstrap.servers": firn.bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "check.crcs": True,
            "fetch.wait.max.ms": 50,
            "error_cb": errors.append,
            **named,
        }
    )
    try:
        yield made
    finally:
        closing = threading.Thread(target=made.close, daemon=True)
        closing.start()
        block_until(lambda: not closing.is_alive(), "the consumer is closed")
    # Whoever names a group is told that there is no coordinator, and that is all there may be.
    assert all(error.code() == KafkaError._ALL_BROKERS_DOWN for error in errors) or not errors, errors


def read(firn: Served, topic: str, offset: int, partitions: int = 1, **settings: Any) -> list[Message]:
    """Everything from an offset to the end of each partition."""
    with consumer(firn, **settings) as client:
        client.assign([TopicPartition(topic, partition, offset) for partition in range(partitions)])
        found, ended = [], set()
        deadline = time.monotonic() + TIMEOUT_S
        while len(ended) < partitions:
            assert time.monotonic() < deadline
            for message in client.consume(1000, 0.5):
                error = message.error()
                if error is None:
                    found.append(message)
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    ended.add(message.partition())
        return found


def values(messages: list[Message]) -> list[bytes]:
    return [message.value() for message in messages]


# --- producing and reading --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
@pytest.mark.parametrize("idempotent", [False, True], ids=["plain", "idempotent"])
def test_records_of_every_codec_come_back_as_they_went(quiet: Served, codec: str, idempotent: bool) -> None:
    topic = f"codec-{codec}-{idempotent}"
    create_topic(quiet.port, topic)
    sender = Sender(quiet, compression_type=codec, enable_idempotence=idempotent, batch_num_messages=50)
    sent = [b"value %d " % n * 20 for n in range(300)]
    for n, value in enumerate(sent):
        sender.send(topic, value, key=b"key %d" % (n % 7), timestamp=MIDDAY + n, headers=[("h", b"1"), ("none", None)])
    assert sorted(message.offset() for message in sender.flush()) == list(range(300))
    found = read(quiet, topic, 0)
    assert values(found) == sent
    assert [message.offset() for message in found] == list(range(300))
    assert [message.timestamp() for message in found] == [(1, MIDDAY + n) for n in range(300)]
    assert {message.key() for message in found} == {b"key %d" % n for n in range(7)}
    assert found[0].headers() == [("h", b"1"), ("none", None)]


@pytest.mark.parametrize("acks", [0, 1, "all"])
def test_every_acks_is_stored(quiet: Served, acks: Any) -> None:
    topic = f"acks-{acks}"
    create_topic(quiet.port, topic)
    sender = Sender(quiet, acks=acks)
    sender.send(topic, *(b"%d" % n for n in range(500)))
    sender.flush()
    if acks == 0:
        # Nothing tells when they are there, but the connection keeps the order.
        sender.send(topic, b"last")
        sender.flush()
    found = read(quiet, topic, 0)
    deadline = time.monotonic() + TIMEOUT_S
    while acks == 0 and len(found) < 501 and time.monotonic() < deadline:
        found = read(quiet, topic, 0)
    assert values(found)[:500] == [b"%d" % n for n in range(500)]


def test_empty_null_and_large_values_come_back(quiet: Served) -> None:
    create_topic(quiet.port, "sizes", configs={"max.message.bytes": "12000000"})
    sender = Sender(quiet, message_max_bytes=12_000_000)
    sent = [b"", b"x" * 10_000_000, b"y"]
    sender.send("sizes", *sent)
    sender.send("sizes", None, key=b"tombstone")  # type: ignore[arg-type]
    sender.flush()
    found = read(quiet, "sizes", 0, fetch_message_max_bytes=65_536)
    assert values(found) == [*sent, None]
    assert found[-1].key() == b"tombstone"


def test_a_message_that_is_too_large_for_the_topic_is_refused_by_name(quiet: Served) -> None:
    create_topic(quiet.port, "small", configs={"max.message.bytes": "1000"})
    refused: list[int] = []
    producer = Producer({"bootstrap.servers": quiet.bootstrap})
    producer.produce("small", b"x" * 2000, on_delivery=lambda error, _: refused.append(error.code()))
    producer.flush(TIMEOUT_S)
    assert refused == [KafkaError.MSG_SIZE_TOO_LARGE]


def test_many_partitions_keep_their_own_order(quiet: Served) -> None:
    create_topic(quiet.port, "many", 64)
    sender = Sender(quiet, enable_idempotence=True)
    for n in range(3200):
        sender.send("many", b"%d" % n, partition=n % 64)
    sender.flush()
    found = read(quiet, "many", 0, 64)
    for partition in range(64):
        assert [int(m.value()) for m in found if m.partition() == partition] == list(range(partition, 3200, 64))


def test_a_topic_that_nobody_made_is_made_by_its_first_message(quiet: Served) -> None:
    sender = Sender(quiet)
    sender.send("made-by-asking", b"first")
    sender.flush()
    assert values(read(quiet, "made-by-asking", 0)) == [b"first"]


def test_the_brokers_own_time_is_what_a_topic_of_append_time_tells(quiet: Served) -> None:
    create_topic(quiet.port, "appended", configs={"message.timestamp.type": "LogAppendTime"})
    sender = Sender(quiet, compression_type="lz4")
    before = int(time.time() * 1000)
    sender.send("appended", b"a", b"b", timestamp=MIDDAY)
    (first, second) = sender.flush()
    found = read(quiet, "appended", 0)
    kinds, times = zip(*(message.timestamp() for message in found), strict=True)
    assert kinds == (2, 2)
    assert all(before - 1000 <= stamp <= time.time() * 1000 + 1000 for stamp in times)
    assert {first.timestamp()[1], second.timestamp()[1]} == set(times)


# --- both tiers -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def cold(firn: Served) -> list[bytes]:
    """What is in ``cold``, 6 MB of it whose local copies have gone but for the last segment."""
    create_topic(firn.port, "cold", configs=COLD_CONFIGS)
    sender = Sender(firn, compression_type="lz4", batch_size=200_000)
    chance = random.Random(5)
    sent = [b"%06d" % n + chance.randbytes(20_000) for n in range(300)]
    for n, value in enumerate(sent):
        sender.send("cold", value, key=b"k%d" % n, timestamp=MIDDAY + 1000 * n, headers={"n": b"%d" % n})
        if n % 10 == 9:
            sender.flush()
    return sent


@pytest.fixture
def local_start(firn: Served, cold: list[bytes]) -> int:
    return wait_until_cold(firn, "cold")


def test_history_is_read_back_whole_from_the_store(quiet: Served, cold: list[bytes], local_start: int) -> None:
    assert local_start > 0
    found = read(quiet, "cold", 0)
    assert values(found) == cold
    assert [message.offset() for message in found] == list(range(len(cold)))
    assert [message.timestamp()[1] for message in found] == [MIDDAY + 1000 * n for n in range(len(cold))]


@pytest.mark.ci
def test_reading_starts_at_any_offset_of_either_tier(quiet: Served, cold: list[bytes], local_start: int) -> None:
    for start in {1, local_start // 2, local_start - 1, local_start, len(cold) - 1}:
        assert values(read(quiet, "cold", start)) == cold[start:]


def test_small_fetches_cross_the_tiers_without_gap(quiet: Served, cold: list[bytes], local_start: int) -> None:
    del local_start
    assert values(read(quiet, "cold", 0, fetch_message_max_bytes=30_000, fetch_max_bytes=1_000_000)) == cold


def test_times_are_found_in_both_tiers(quiet: Served, cold: list[bytes], local_start: int) -> None:
    with consumer(quiet) as client:
        for n in {0, 1, local_start - 1, local_start, len(cold) - 1}:
            for early in (0, 999):
                asked = TopicPartition("cold", 0, MIDDAY + 1000 * n - early)
                (answer,) = client.offsets_for_times([asked], TIMEOUT_S)
                assert (answer.error, answer.offset) == (None, n)
        (answer,) = client.offsets_for_times([TopicPartition("cold", 0, MIDDAY + 10_000_000)], TIMEOUT_S)
        assert answer.offset == -1
        assert client.get_watermark_offsets(TopicPartition("cold", 0), TIMEOUT_S) == (0, len(cold))


def test_an_offset_outside_of_the_log_is_said_to_be_so(quiet: Served, cold: list[bytes]) -> None:
    with consumer(quiet) as client:
        client.assign([TopicPartition("cold", 0, len(cold) + 5)])
        message = client.poll(TIMEOUT_S)
        assert message.error().code() == KafkaError._AUTO_OFFSET_RESET
    with consumer(quiet, auto_offset_reset="earliest") as client:
        client.assign([TopicPartition("cold", 0, len(cold) + 5)])
        message = client.poll(TIMEOUT_S)
        assert message.error() is None
        assert (message.offset(), message.value()) == (0, cold[0])


# --- administration ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def admin(firn: Served) -> AdminClient:
    return AdminClient({"bootstrap.servers": firn.bootstrap})


def done(futures: dict[Any, Future[Any]]) -> list[Any]:
    return [future.result(TIMEOUT_S) for future in futures.values()]


def code_of(ask: Callable[[], object]) -> int:
    with pytest.raises(KafkaException) as caught:
        ask()
    return int(caught.value.args[0].code())


def test_all_topics_are_listed(quiet: Served, admin: AdminClient) -> None:
    create_topic(quiet.port, "listed", 3)
    found = admin.list_topics(timeout=TIMEOUT_S)
    assert len(found.topics["listed"].partitions) == 3
    assert found.topics["listed"].partitions[2].leader == 1
    assert found.topics["listed"].partitions[2].isrs == [1]
    assert [(broker.host, broker.port) for broker in found.brokers.values()] == [("127.0.0.1", quiet.port)]
    assert list(admin.list_topics("listed", TIMEOUT_S).topics) == ["listed"]


def test_topics_are_made_grown_described_and_deleted(quiet: Served, admin: AdminClient) -> None:
    done(admin.create_topics([NewTopic("life", 2, 1, config={"retention.ms": "5000"})], operation_timeout=60))
    assert code_of(lambda: done(admin.create_topics([NewTopic("life", 1)]))) == KafkaError.TOPIC_ALREADY_EXISTS
    done(admin.create_partitions([NewPartitions("life", 5)]))
    assert code_of(lambda: done(admin.create_partitions([NewPartitions("life", 5)]))) == KafkaError.INVALID_PARTITIONS
    (described,) = done(admin.describe_topics(confluent_kafka.TopicCollection(["life"])))
    assert [partition.leader.id for partition in described.partitions] == [1] * 5
    done(admin.delete_topics(["life"]))
    assert code_of(lambda: done(admin.delete_topics(["life"]))) == KafkaError.UNKNOWN_TOPIC_OR_PART
    assert "life" not in admin.list_topics(timeout=TIMEOUT_S).topics


def test_a_topic_that_could_be_made_is_not_made_by_validation(
    quiet: Served, admin: AdminClient, how: Sequence[str]
) -> None:
    done(admin.create_topics([NewTopic("only-tried", 2, 1)], validate_only=True))
    assert "only-tried" not in admin.list_topics(timeout=TIMEOUT_S).topics
    bad = NewTopic("only-tried", 2, 1, config={"retention.ms": "soon"})
    assert code_of(lambda: done(admin.create_topics([bad]))) == KafkaError.INVALID_CONFIG
    assert code_of(lambda: done(admin.create_topics([NewTopic("in valid", 1)]))) == KafkaError.TOPIC_EXCEPTION
    many = [NewTopic("t", 1, FACTOR)]
    if how:
        done(admin.create_topics(many))
        assert admin.list_topics("t", TIMEOUT_S).topics["t"].partitions[0].replicas == [1]
    else:
        assert code_of(lambda: done(admin.create_topics(many))) == KafkaError.INVALID_REPLICATION_FACTOR


def test_configs_are_described_and_changed(quiet: Served, admin: AdminClient, how: Sequence[str]) -> None:
    local = {} if how else {"remote.storage.enable": "false"}  # only then it can be compacted
    create_topic(quiet.port, "configured", configs={"segment.ms": "60000", **local})
    resource = ConfigResource(ResourceType.TOPIC, "configured")

    def described() -> dict[str, ConfigEntry]:
        (configs,) = done(admin.describe_configs([resource]))
        return dict(configs)

    before = described()
    assert (before["segment.ms"].value, before["segment.ms"].is_default) == ("60000", False)
    assert (before["max.message.bytes"].value, before["max.message.bytes"].is_default) == ("1048588", True)
    change = ConfigResource(
        ResourceType.TOPIC,
        "configured",
        incremental_configs=[
            ConfigEntry("segment.ms", None, incremental_operation=AlterConfigOpType.DELETE),
            ConfigEntry("max.message.bytes", "5000", incremental_operation=AlterConfigOpType.SET),
            ConfigEntry("cleanup.policy", "compact", incremental_operation=AlterConfigOpType.APPEND),
        ],
    )
    done(admin.incremental_alter_configs([change]))
    after = described()
    assert after["segment.ms"].is_default
    assert after["max.message.bytes"].value == "5000"
    assert set(after["cleanup.policy"].value.split(",")) == {"compact", "delete"}
    with pytest.warns(DeprecationWarning, match="alter_configs"):
        futures = admin.alter_configs(
            [ConfigResource(ResourceType.TOPIC, "configured", {**local, "segment.ms": "70000"})]
        )
    done(futures)
    last = described()
    assert last["segment.ms"].value == "70000"
    assert last["max.message.bytes"].is_default
    (broker,) = done(admin.describe_configs([ConfigResource(ResourceType.BROKER, "1")]))
    assert broker["node.id"].value == "1"


def test_records_are_deleted_up_to_an_offset(quiet: Served, admin: AdminClient) -> None:
    create_topic(quiet.port, "shortened")
    sender = Sender(quiet)
    sender.send("shortened", *(b"%d" % n for n in range(20)))
    sender.flush()
    (deleted,) = done(admin.delete_records([TopicPartition("shortened", 0, 7)]))
    assert deleted.low_watermark == 7
    assert values(read(quiet, "shortened", 7)) == [b"%d" % n for n in range(7, 20)]
    too_far = TopicPartition("shortened", 0, 21)
    assert code_of(lambda: done(admin.delete_records([too_far]))) == KafkaError.OFFSET_OUT_OF_RANGE
    (emptied,) = done(admin.delete_records([TopicPartition("shortened", 0, -1)]))
    assert emptied.low_watermark == 20


def test_offsets_of_places_and_times_are_listed(quiet: Served, admin: AdminClient) -> None:
    create_topic(quiet.port, "placed")
    sender = Sender(quiet)
    for n in (0, 5, 2):
        sender.send("placed", b"x", timestamp=MIDDAY + n)
        sender.flush()
    partition = TopicPartition("placed", 0)
    for spec, offset in (
        (OffsetSpec.earliest(), 0),
        (OffsetSpec.latest(), 3),
        (OffsetSpec.max_timestamp(), 1),
        (OffsetSpec.for_timestamp(MIDDAY + 1), 1),
        (OffsetSpec.for_timestamp(MIDDAY + 6), -1),
    ):
        (found,) = done(admin.list_offsets({partition: spec}))
        assert found.offset == offset


def test_the_cluster_is_described(quiet: Served, admin: AdminClient) -> None:
    cluster = admin.describe_cluster().result(TIMEOUT_S)
    assert [(node.id, node.host, node.port) for node in cluster.nodes] == [(1, "127.0.0.1", quiet.port)]
    assert cluster.controller.id == 1
    assert len(cluster.cluster_id) == 22


# --- what is not there yet --------------------------------------------------------------------------------------------


@pytest.mark.ci
def test_a_group_waits_for_its_coordinator_without_wearing_the_broker_out(quiet: Served) -> None:
    create_topic(quiet.port, "subscribed")
    with consumer(quiet) as client:
        client.subscribe(["subscribed"])
        before = quiet.cpu_s()
        assert client.poll(3) is None
        assert quiet.cpu_s() - before < 1


def test_a_local_start_is_told_apart_from_the_start(quiet: Served, local_start: int) -> None:
    assert offset_of(quiet.port, "cold", EARLIEST_LOCAL) == local_start
