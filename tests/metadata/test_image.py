"""The cluster image: what records add up to, what images share, what a snapshot brings back."""

from __future__ import annotations

from dataclasses import replace
from typing import Final
from uuid import UUID

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.configs import BrokerConfig
from app.core.errors import CorruptionError
from app.core.units import BrokerId, LeaderEpoch, LogSequence, PartitionIndex, ProducerId, TimestampMs
from app.metadata.image.draft import ClusterState, ImageDraft
from app.metadata.image.image import ClusterImage, ImageDelta, PartitionImage
from app.metadata.image.records import (
    ALL_BROKERS,
    BrokerRecord,
    ChangingPartitionRecord,
    ClusterRecord,
    ControllerRecord,
    Endpoint,
    LossyPartitionRecord,
    MemberRecord,
    ObjectTopicRecord,
    PartitionRecord,
    ProducerIdsRecord,
    TopicRecord,
    WalPartitionRecord,
    broker_change,
    broker_configs_change,
    cluster_change,
    controller_change,
    partition_change,
    producer_ids_change,
    topic_change,
    upgrade_needed,
)
from app.metadata.image.wal_ranges import OPEN, PartitionDurability, WalRange
from app.metadata.log.log_format import Entry, KeyValue, ValueDecoder, Versioned, encode_key
from tests.metadata.support import uuid_of

A, B = uuid_of(1), uuid_of(2)
ONE = BrokerId(1)


def topic(name: str, count: int = 1, **more: object) -> TopicRecord:
    return msgspec.structs.replace(TopicRecord(1, name, count, {}, TimestampMs(5)), **more)


def partition(leader: int = 1, epoch: int = 0) -> PartitionRecord:
    return PartitionRecord(1, BrokerId(leader), LeaderEpoch(epoch), 0, (BrokerId(leader),), (BrokerId(leader),))


def created(topic_id: UUID, name: str, count: int = 1) -> list[KeyValue]:
    return [
        *(partition_change(topic_id, index, partition()) for index in range(count)),
        topic_change(topic_id, topic(name, count)),
    ]


def applied(image: ClusterImage, *records: KeyValue, sequence: int = 1) -> ClusterImage:
    state = ClusterState()
    state.image = image
    state.apply(Entry(LogSequence(sequence), "w", bytes(16), False, 0, bytes(16), TimestampMs(0), records))
    return state.image


def test_records_are_these_bytes() -> None:
    key, value = partition_change(A, 3, partition(1, 2))
    assert key.hex() == "9314c410" + "00000000000000000000000000000001" + "03"
    assert value is not None
    assert value.hex() == "98" + "01" + "01" + "02" + "00" + "9101" + "9101" + "90" + "90"
    key, value = topic_change(A, topic("t", 3, configs={"a": "b"}))
    assert key.hex() == "9213c410" + "00000000000000000000000000000001"
    assert value is not None
    assert value.hex() == "96" + "01" + "a174" + "03" + "81a161a162" + "05" + "c2"
    assert broker_configs_change(ALL_BROKERS, {"a": "b"}) == (bytes.fromhex("9215ff"), bytes.fromhex("920181a161a162"))
    assert broker_configs_change(7, {}) == (bytes.fromhex("921507"), None)
    assert producer_ids_change(ProducerIdsRecord(1, ProducerId(1000), ONE)) == (
        bytes.fromhex("9116"),
        bytes.fromhex("9301cd03e801"),
    )
    assert cluster_change(ClusterRecord(1, "x", TimestampMs(1))) == (bytes.fromhex("9110"), bytes.fromhex("9301a17801"))
    key, value = controller_change(ControllerRecord(1, 4, ONE, A))
    assert (key.hex(), (value or b"").hex()) == ("9111", "940104" + "01" + "c410" + "00" * 15 + "01")
    record = BrokerRecord(1, A, B, 0, (Endpoint("P", "h", 9, "PLAINTEXT"),), None, TimestampMs(1))
    key, value = broker_change(1, record)
    assert key.hex() == "921201"
    assert value is not None
    assert msgspec.msgpack.decode(value) == [1, A.bytes, B.bytes, 0, [["P", "h", 9, "PLAINTEXT"]], None, 1, ""]


REGISTRATION_OF_0_1: Final = bytes.fromhex(
    "9701c41000000000000000000000000000000001c4100000000000000000000000000000000200"
    "9194a150a16809a9504c41494e54455854c001"
)
"""What a broker wrote into the cluster log before registrations had an instance id."""


def test_a_registration_carries_the_instance_id() -> None:
    endpoints = (Endpoint("P", "h", 9, "PLAINTEXT"),)
    record = BrokerRecord(1, A, B, 0, endpoints, "r", TimestampMs(1), "i-0abc")
    found = applied(ClusterImage(), broker_change(1, record)).brokers[1]
    assert (found.instance_id, found.rack, found.endpoints) == ("i-0abc", "r", endpoints)


def test_a_registration_of_an_older_version_has_no_instance_id() -> None:
    key, _ = broker_change(1, BrokerRecord(1, A, B, 0, (), None, TimestampMs(1)))
    found = applied(ClusterImage(), (key, REGISTRATION_OF_0_1)).brokers[1]
    assert (found.directory_id, found.incarnation, found.host, found.port) == (A, B, "h", 9)
    assert found.instance_id == ""


class OldBrokerRecord(Versioned, array_like=True, frozen=True):
    """A registration as version 0.1 knew it before it had an instance id."""

    directory_id: UUID
    incarnation: UUID
    broker_epoch: int
    endpoints: tuple[Endpoint, ...]
    rack: str | None
    registered_ms: TimestampMs


def test_an_older_version_reads_a_registration_with_an_instance_id() -> None:
    endpoints = (Endpoint("P", "h", 9, "PLAINTEXT"),)
    _, value = broker_change(1, BrokerRecord(1, A, B, 0, endpoints, None, TimestampMs(1), "i-0abc"))
    assert value is not None
    old = ValueDecoder(OldBrokerRecord, 1, "broker").decode(value)
    assert old == OldBrokerRecord(1, A, B, 0, endpoints, None, TimestampMs(1))


def test_a_topic_is_there_by_name_and_by_id() -> None:
    image = applied(ClusterImage(), *created(A, "a", 3))
    found = image.topic("a")
    assert found is not None
    assert image.topic_by_id(A) is found
    assert [each.partition_index for each in found.partitions] == [0, 1, 2]
    assert image.partition(A, 2) == found.partitions[2]
    assert image.partition(A, 3) is image.partition(B, 0) is None
    assert image.sequence == 1
    assert found.record() == topic("a", 3)
    assert found.partitions[0].record() == partition()


def test_an_entry_shares_what_it_does_not_touch_and_leaves_the_old_image_alone() -> None:
    before = applied(ClusterImage(), *created(A, "a", 2), *created(B, "b"))
    after = applied(before, partition_change(A, 1, partition(2, 7)))
    assert before.topics_by_id[A].partitions[1].leader_epoch == 0
    assert after.topics_by_id[A].partitions[1].leader_epoch == 7
    assert after.topics_by_id[A].partitions[0] is before.topics_by_id[A].partitions[0]
    assert after.topics_by_id[B] is before.topics_by_id[B]
    assert after.brokers is before.brokers
    assert ImageDelta.between(before, after) == ({A}, False, False, False, False, False, False)


def test_a_deleted_topic_waits_until_it_is_swept() -> None:
    before = applied(ClusterImage(), *created(A, "a", 2))
    gone = [partition_change(A, index, None) for index in range(2)]
    deleting = applied(before, topic_change(A, topic("a", 2, deleting=True)), *gone)
    assert deleting.topic("a") is deleting.topic_by_id(A) is None
    assert deleting.deleting[A] == (A, "a", 2)
    assert ImageDelta.between(before, deleting) == ({A}, False, False, True, False, False, False)
    again = applied(deleting, *created(B, "a"))
    assert again.topics_by_name["a"].topic_id == B
    assert A in again.deleting
    swept = applied(again, topic_change(A, None))
    assert not swept.deleting
    assert swept.topics_by_name["a"].topic_id == B


def test_a_topic_may_be_deleted_and_made_again_in_one_entry() -> None:
    before = applied(ClusterImage(), *created(A, "a"))
    after = applied(before, topic_change(A, topic("a", deleting=True)), partition_change(A, 0, None), *created(B, "a"))
    assert after.topics_by_name["a"].topic_id == B
    assert ImageDelta.between(before, after).topics == {A, B}


@pytest.mark.parametrize(
    ("records", "why"),
    [
        ([topic_change(A, topic("a", 2)), partition_change(A, 0, partition())], "no record of partition 1"),
        ([*created(A, "a"), partition_change(A, 1, partition())], "has 2 partitions, not 1"),
        ([partition_change(A, 0, partition())], "no such topic"),
        ([*created(A, "a"), *created(B, "a")], "the same name"),
        ([(encode_key(20, "x"), b"")], "not one of its kind"),
        ([(encode_key(19), b"")], "not one of its kind"),
        ([(encode_key(19, A), b"\x91\x09")], "format version from the future"),
        ([(encode_key(17), None)], "is gone"),
    ],
)
def test_records_that_do_not_fit_are_corruption_and_change_nothing(records: list[KeyValue], why: str) -> None:
    state = ClusterState()
    before = state.image
    with pytest.raises(CorruptionError, match=why):
        state.apply(Entry(LogSequence(1), "w", bytes(16), False, 0, bytes(16), TimestampMs(0), tuple(records)))
    assert state.image is before


def test_producer_ids_never_go_back() -> None:
    image = applied(ClusterImage(), producer_ids_change(ProducerIdsRecord(1, ProducerId(2000), ONE)))
    with pytest.raises(CorruptionError, match="Producer ids would go back"):
        applied(image, producer_ids_change(ProducerIdsRecord(1, ProducerId(1000), ONE)))


@pytest.mark.parametrize("kind", [31, 99])
def test_unknown_kinds_are_passed_over(kind: int) -> None:
    image = applied(ClusterImage(), (encode_key(kind, "x"), b"whatever"))
    assert image == ClusterImage(sequence=LogSequence(1))


def test_names_collide_when_only_dots_and_underscores_differ() -> None:
    draft = ImageDraft(applied(ClusterImage(), *created(A, "a.b")))
    assert draft.colliding_name("a_b") == "a.b"
    assert draft.colliding_name("a.b") is None
    draft.apply(created(B, "c_d"))
    assert draft.colliding_name("c.d") == "c_d"
    draft.apply([topic_change(B, None), partition_change(B, 0, None)])
    assert draft.colliding_name("c.d") is None


def test_effective_configs_are_layered() -> None:
    image = applied(
        ClusterImage(),
        *created(A, "a"),
        *created(B, "b"),
        topic_change(B, topic("b", configs={"retention.ms": "1000", "local.retention.ms": "10"})),
        broker_configs_change(ALL_BROKERS, {"log.retention.ms": "5000000000", "log.segment.bytes": "2000000"}),
        broker_configs_change(1, {"log.segment.bytes": "3000000"}),
    )
    started = BrokerConfig(node_id=1, num_partitions=5)
    plain = image.effective_config(image.topics_by_name["a"], started)
    assert (plain.retention_ms, plain.segment_bytes) == (5_000_000_000, 3_000_000)
    own = image.effective_config(image.topics_by_name["b"], started)
    assert (own.retention_ms, own.segment_bytes) == (1000, 3_000_000)
    elsewhere = image.effective_config(image.topics_by_name["a"], BrokerConfig(node_id=2))
    assert elsewhere.segment_bytes == 2_000_000
    assert image.effective_broker_config(started).num_partitions == 5


changes = st.lists(
    st.tuples(st.sampled_from(["create", "delete", "sweep", "grow", "bump", "config"]), st.integers(0, 6)), max_size=40
)


@settings(max_examples=60)
@given(changes, st.integers(0, 40))
def test_a_snapshot_and_the_tail_are_the_image(script: list[tuple[str, int]], cut: int) -> None:
    """Replaying all, or a snapshot at any point and what followed, gives the same image."""
    whole, live, half = ClusterState(), {}, None
    for step, (action, number) in enumerate(script):
        image = whole.image
        topic_id, name = uuid_of(number + 1), f"t{number % 4}"
        found = image.topic_by_id(topic_id)
        records: list[KeyValue] = []
        if action == "create" and found is None and image.topic(name) is None and topic_id not in image.deleting:
            records = created(topic_id, name, 1 + number)
        elif action == "delete" and found is not None:
            gone = [partition_change(topic_id, each.partition_index, None) for each in found.partitions]
            records = [topic_change(topic_id, found.record(deleting=True, configs={})), *gone]
        elif action == "sweep" and topic_id in image.deleting:
            records = [topic_change(topic_id, None)]
        elif action == "grow" and found is not None:
            count = len(found.partitions)
            records = [
                topic_change(topic_id, found.record(partition_count=count + 1)),
                partition_change(topic_id, count, partition()),
            ]
        elif action == "bump" and found is not None:
            records = [partition_change(topic_id, 0, partition(1, found.partitions[0].leader_epoch + 1))]
        elif action == "config":
            records = [broker_configs_change(number, {"log.segment.bytes": str(step)} if step % 2 else {})]
        entry = Entry(LogSequence(step), "w", bytes(16), False, 0, bytes(16), TimestampMs(0), tuple(records))
        whole.apply(entry)
        for key, value in records:
            if value is None:
                live.pop(key, None)
            else:
                live[key] = value
        if half is not None:
            half.apply(entry)
        if step == cut:
            half = ClusterState()
            pairs = sorted(live.items(), key=lambda pair: pair[0][::-1])
            half.load(pairs[: len(pairs) // 2])
            half.load(pairs[len(pairs) // 2 :])
            half.loaded(LogSequence(step))
    if half is not None:
        assert half.image == whole.image
        assert ImageDelta.between(half.image, whole.image) == (frozenset(), False, False, False, False, False, False)


@pytest.mark.parametrize(
    ("more", "kind", "encoded"),
    [
        ({}, PartitionRecord, "9801010509910191019090"),
        ({"recovering": True}, ChangingPartitionRecord, "9b010105099101910190909090c3"),
        ({"unclean_epoch": 5}, LossyPartitionRecord, "9c010105099101910190909090c205"),
        ({"durability": PartitionDurability.TO_OBJECT}, WalPartitionRecord, "9e010105099101910190909090c2ff0190"),
        (
            {
                "durability": PartitionDurability.OBJECT,
                "wal_ranges": (WalRange(1, 2, 3, 4, 6), WalRange(1, 9, 5, 0, OPEN)),
            },
            WalPartitionRecord,
            "9e010105099101910190909090c2ff02929501020304069501090500ff",
        ),
        (
            {"wal_ranges": (WalRange(1, 2, 3, 4, 6),)},
            WalPartitionRecord,
            "9e010105099101910190909090c2ff0091950102030406",
        ),
    ],
)
def test_a_partition_is_written_in_the_shortest_form_and_read_in_every_form(
    more: dict[str, object], kind: type[PartitionRecord], encoded: str
) -> None:
    image = PartitionImage(PartitionIndex(0), ONE, LeaderEpoch(5), 9, (ONE,), (ONE,))._replace(**more)  # type: ignore[arg-type]
    record = image.record()
    assert type(record) is kind
    key, value = partition_change(A, 0, record)
    assert value == bytes.fromhex(encoded)
    after = applied(ClusterImage(), (key, value), topic_change(A, topic("t")))
    assert after.topics_by_id[A].partitions == (image,)  # type: ignore[index]


def test_a_registration_says_the_end_of_its_log_only_if_it_has_one() -> None:
    record = MemberRecord(1, A, B, 7, (), None, TimestampMs(5), level_max=3)
    image = applied(ClusterImage(), broker_change(1, record)).brokers[1]
    assert type(image.record()) is MemberRecord
    assert broker_change(1, image.record()) == broker_change(1, record)
    sealed = replace(image, wal_end=0)
    assert broker_change(1, sealed.record())[1] == b"\x9e" + (broker_change(1, record)[1] or b"")[1:] + b"\0"
    assert applied(ClusterImage(), broker_change(1, sealed.record())).brokers[1] == sealed


def test_a_topic_says_the_factor_that_was_asked_for_only_if_it_is_kept() -> None:
    asked = ObjectTopicRecord(1, "t", 1, {}, TimestampMs(5), replication_factor=3)
    image = applied(ClusterImage(), topic_change(A, asked), partition_change(A, 0, partition())).topics_by_id[A]
    assert (image.replication_factor, image.record()) == (3, asked)
    without = replace(image, replication_factor=-1)
    assert type(without.record()) is TopicRecord
    assert topic_change(A, asked)[1] == b"\x97" + (topic_change(A, without.record())[1] or b"")[1:] + b"\x03"


def test_an_unknown_durability_is_corruption() -> None:
    value = bytes.fromhex("9e010105099101910190909090c2ff0490")
    with pytest.raises(CorruptionError):
        applied(ClusterImage(), (partition_change(A, 0, partition())[0], value), topic_change(A, topic("t")))


def test_the_sentence_of_a_level_that_is_too_low_names_both_levels_and_the_command() -> None:
    assert upgrade_needed("Metrics need", 6, 4) == (
        "Metrics need firn.version 6, and the cluster is at 4. Upgrade all brokers, then run"
        " `firn cluster features --upgrade firn.version=6`."
    )
