"""Which store the write-ahead logs of a cluster are in: markers, and who may change it (ADR 0037, J61 to J64)."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest

from app.core.errors import CorruptionError, ErrorCode, RequestRejected
from app.core.units import LogSequence, TimestampMs
from app.metadata.changes.broker_changes import RegistrationAsked, fence_brokers, register_broker, unfence_brokers
from app.metadata.image import draft as draft_module
from app.metadata.image.draft import ImageDraft
from app.metadata.image.image import ClusterImage
from app.metadata.image.records import (
    NOT_SEALED,
    ClusterRecord,
    WalStoreClusterRecord,
    broker_change,
    cluster_change,
    wal_store_change,
)
from app.metadata.log import layout
from app.metadata.log.log_format import ValueDecoder
from app.metadata.view.registration import StartRefused
from app.metadata.view.wal_store import MARKER_BYTES_MAX, StoreMarker, decode_marker, encode_marker, find_wal_store
from app.objectstore.memory import Fault, FaultKind, MemoryStore
from tests.metadata.several import applied, around, in_logs, several
from tests.metadata.support import uuid_of

STORE_ID = "0f8fad5b-d9cb-469f-a165-70867728950e"
OTHER_ID = "7c9e6679-7425-40de-944b-e07fc1f90ae7"
MARKER = b'{"format":1,"cluster":"AAAAAAAAAAAAAAAAAAAAAA","store":"0f8fad5b-d9cb-469f-a165-70867728950e"}\n'
CLUSTER_ID = "AAAAAAAAAAAAAAAAAAAAAA"
URL = "s3://fast--use1-az4--x-s3"


# --- markers ----------------------------------------------------------------------------------------------------------


def test_a_marker_is_literally_these_bytes() -> None:
    assert encode_marker(StoreMarker(CLUSTER_ID, STORE_ID)) == MARKER
    assert decode_marker(MARKER) == StoreMarker(CLUSTER_ID, STORE_ID)
    assert decode_marker(MARKER.replace(b"}", b',"more":[1]}')) == StoreMarker(CLUSTER_ID, STORE_ID)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"\xff",
        MARKER[:-3],
        MARKER.replace(b"-70867728950e", b""),
        b" " * MARKER_BYTES_MAX + MARKER,
        b'{"format":1,"cluster":7,"store":"0f8fad5b-d9cb-469f-a165-70867728950e"}',
    ],
)
def test_what_is_no_marker_is_refused(data: bytes) -> None:
    with pytest.raises(CorruptionError, match="wal/store is not the marker of a WAL store"):
        decode_marker(data)


def test_a_marker_of_the_future_is_refused() -> None:
    with pytest.raises(CorruptionError, match="format version from the future"):
        decode_marker(MARKER.replace(b":1,", b":2,"))


def cluster(wal_store: str = "") -> ClusterImage:
    return ClusterImage(cluster_id=CLUSTER_ID, wal_store=wal_store)


async def found(store: MemoryStore, image: ClusterImage, seed: int = 1) -> str:
    return await find_wal_store(store, URL, image, random.Random(seed))


async def test_the_first_broker_puts_the_marker_and_the_others_read_it() -> None:
    store = MemoryStore()
    store_id, *others = await asyncio.gather(*(found(store, cluster(), seed) for seed in range(5)))
    assert set(others) == {store_id}
    assert decode_marker(await store.get(layout.WAL_STORE_KEY)) == StoreMarker(CLUSTER_ID, store_id)
    assert await found(store, cluster(store_id)) == store_id


async def test_a_marker_whose_answer_was_lost_is_the_marker() -> None:
    store = MemoryStore(faults=[Fault(FaultKind.LOST_ANSWER, "put_if_absent", times=1)])
    with pytest.raises(Exception, match="wal/store"):
        await found(store, cluster(), 1)
    assert await found(store, cluster(), 2) == decode_marker(await store.get(layout.WAL_STORE_KEY)).store_id


async def test_a_store_of_another_cluster_is_refused() -> None:
    store = MemoryStore()
    await store.put(layout.WAL_STORE_KEY, MARKER.replace(b"AAAA", b"BBBB"))
    with pytest.raises(StartRefused, match=f"{URL} has the write-ahead logs of cluster BBBB.* prefix of its own"):
        await found(store, cluster())


async def test_j64_a_store_without_a_marker_is_refused_where_the_cluster_names_one() -> None:
    store = MemoryStore()
    with pytest.raises(StartRefused, match=f"WAL store {STORE_ID}, and {URL} has no marker.* mount the file system"):
        await found(store, cluster(STORE_ID))
    assert await store.list_objects("") == []


# --- the cluster's record ---------------------------------------------------------------------------------------------


def test_the_record_of_the_cluster_is_literally_these_bytes() -> None:
    record = WalStoreClusterRecord(3, "x", TimestampMs(1), "s")
    assert cluster_change(record) == (bytes.fromhex("9110"), bytes.fromhex("9403a17801a173"))
    assert wal_store_change("x", TimestampMs(1), "s") == cluster_change(record)
    assert wal_store_change("x", TimestampMs(1), "") == cluster_change(ClusterRecord(2, "x", TimestampMs(1)))


def test_images_know_the_store_until_it_is_the_main_one_again() -> None:
    draft = ImageDraft(ClusterImage())
    draft.apply([wal_store_change("x", TimestampMs(1), STORE_ID)])
    image = draft.freeze(LogSequence(1))
    assert image.wal_store == ImageDraft(image).wal_store == STORE_ID
    draft = ImageDraft(image)
    draft.apply([wal_store_change("x", TimestampMs(1), "")])
    assert draft.freeze(LogSequence(2)).wal_store == ""


def test_a_program_that_knows_no_wal_store_refuses_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_module, "CLUSTERS", ValueDecoder(WalStoreClusterRecord, 2, "cluster"))
    with pytest.raises(CorruptionError, match="format version 3, a format version from the future"):
        ImageDraft(ClusterImage()).apply([wal_store_change("x", TimestampMs(1), STORE_ID)])


# --- registrations ----------------------------------------------------------------------------------------------------


def asked(draft: ImageDraft, broker_id: int, wal_store: str) -> RegistrationAsked:
    bound = draft.brokers.get(broker_id)
    return RegistrationAsked(
        broker_id,
        uuid_of(100 + broker_id),
        uuid_of(700),
        "boot",
        (),
        1,
        3,
        replaces=-1 if bound is None else bound.broker_epoch,
        wal_store=wal_store,
    )


def all_fenced(draft: ImageDraft) -> ImageDraft:
    draft.apply([broker_change(each.broker_id, replace(each, fenced=True).record()) for each in draft.brokers.values()])
    return draft


def test_j62_a_broker_registers_with_the_store_that_the_cluster_names() -> None:
    draft = in_logs(1, 2)
    applied(draft, register_broker(draft, around(), asked(draft, 3, "")))
    assert draft.wal_store == ""
    draft.apply([wal_store_change("x", TimestampMs(1), STORE_ID)])
    applied(draft, register_broker(draft, around(), asked(draft, 4, STORE_ID)))
    for wal_store, why in (
        ("", "this broker names none: start it with the --wal-store"),
        (OTHER_ID, f"WAL store {STORE_ID}, and that of this broker is {OTHER_ID}"),
    ):
        with pytest.raises(RequestRejected, match=why) as refused:
            register_broker(draft, around(), asked(draft, 5, wal_store))
        assert refused.value.code is ErrorCode.INVALID_REQUEST


def test_j63_the_store_is_not_changed_while_a_partition_has_a_range_or_the_rule_of_logs() -> None:
    draft = all_fenced(in_logs(1))
    why = "start it without --wal-store .*cannot be changed while a topic has records in them"
    with pytest.raises(RequestRejected, match=why):
        register_broker(draft, around(), asked(draft, 1, STORE_ID))


def test_j63_the_store_is_not_changed_while_another_broker_runs() -> None:
    draft = several(level=3, brokers=[1, 2, 3])
    applied(draft, fence_brokers(draft, around(), [(2, 12)]))
    with pytest.raises(RequestRejected, match=r"stop all brokers first: \[1, 3\] are running"):
        register_broker(draft, around(), asked(draft, 2, STORE_ID))


def test_the_store_needs_the_level() -> None:
    draft = all_fenced(several(level=2))
    with pytest.raises(RequestRejected, match=r"needs firn\.version 3, and the cluster's is 2") as refused:
        register_broker(draft, around(), asked(draft, 1, STORE_ID))
    assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION


def test_j63_the_store_is_changed_where_nothing_counts_and_whoever_was_cut_off_registers_again() -> None:
    draft = all_fenced(several(level=3, brokers=[1, 2, 3]))
    draft.apply([broker_change(3, replace(draft.brokers[3], wal_end=7).record())])
    answer = applied(draft, register_broker(draft, around(), asked(draft, 1, STORE_ID)))
    assert draft.wal_store == STORE_ID
    assert [each.wal_end for _, each in sorted(draft.brokers.items())] == [NOT_SEALED, 0, 7]
    # 2 was paused, and its store is the former one.
    epoch = draft.brokers[2].broker_epoch
    assert applied(draft, unfence_brokers(draft, around(), [(2, epoch, 10**6)])).brokers == ()
    assert applied(draft, unfence_brokers(draft, around(), [(1, answer.broker_epoch, 10**6)])).brokers == (1,)
    with pytest.raises(RequestRejected, match="this broker names none"):
        register_broker(draft, around(), asked(draft, 2, "")._replace(anew=epoch))
    applied(draft, register_broker(draft, around(), asked(draft, 2, STORE_ID)))
    epoch = draft.brokers[2].broker_epoch
    assert applied(draft, unfence_brokers(draft, around(), [(2, epoch, 10**6)])).brokers == (2,)
