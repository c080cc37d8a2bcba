"""Two stores as one: each key has its store, and one that is away takes nothing from the other (ADR 0037, J61)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from app.core.errors import ConfigError, StorageUnavailable
from app.core.metrics import Registry
from app.machine.runtime import ThreadPool
from app.metadata.log import layout
from app.objectstore.directory import DirectoryStore
from app.objectstore.location import check_locations
from app.objectstore.memory import Fault, FaultKind, MemoryStore
from app.objectstore.metered import MeteredStore, directory_of
from app.objectstore.opening import open_store
from app.objectstore.split import WAL_KEYS, SplitStore, main_of, stores_of


def keys_of(store: MemoryStore) -> list[str]:
    return sorted(store._objects)


async def test_keys_of_write_ahead_logs_are_in_their_own_store_and_all_others_in_the_main_one() -> None:
    assert WAL_KEYS == layout.WAL_PREFIX
    main, wal = MemoryStore(), MemoryStore()
    store = SplitStore(main, wal)
    for key in ("wal/1/5/7", "wal/store", "walrus", "data/a", "cluster/log/0"):
        await store.put_if_absent(key, key.encode())
    assert keys_of(wal) == ["wal/1/5/7", "wal/store"]
    assert keys_of(main) == ["cluster/log/0", "data/a", "walrus"]
    assert await store.get("wal/1/5/7") == b"wal/1/5/7"
    assert await store.get_tail("wal/1/5/7", 1) == (b"7", 9)
    assert await store.get_range("data/a", 0, 4) == b"data"
    assert (await store.head("wal/store")).size_bytes == 9
    assert [info.key for info in await store.list_objects("wal/")] == ["wal/1/5/7", "wal/store"]
    assert [info.key for info in await store.list_objects("wal/", start_after="wal/1/5/7")] == ["wal/store"]
    assert [info.key for info in await store.list_objects("data/")] == ["data/a"]
    await main.put("wal/1/5/1", b"of a time when there was one store")
    everything = ["cluster/log/0", "data/a", "wal/1/5/7", "wal/store", "walrus"]
    assert [info.key for info in await store.list_objects("")] == everything
    for limit in (1, 2, 3):
        paged: list[str] = []
        while page := await store.list_objects("", start_after=paged[-1] if paged else "", limit=limit):
            paged += [info.key for info in page]
        assert paged == everything
    await main.delete("wal/1/5/1")
    upload = await store.begin_upload("data/b")
    await upload.put_part(1, b"part")
    assert [one.key for one in await store.list_uploads("data/")] == ["data/b"]
    await store.abort_upload("data/b", upload.upload_id)
    await store.delete_many(["wal/1/5/7", "data/a"])
    await store.delete("wal/store")
    assert (keys_of(main), keys_of(wal)) == (["cluster/log/0", "walrus"], [])


async def test_a_store_that_is_away_takes_nothing_from_the_other() -> None:
    main, wal = MemoryStore(), MemoryStore()
    store = SplitStore(main, wal)
    wal.faults.append(Fault(FaultKind.UNAVAILABLE))
    await store.put("data/a", b"")
    with pytest.raises(StorageUnavailable):
        await store.put("wal/1/5/7", b"")
    main.faults, wal.faults = wal.faults, []
    await store.put("wal/1/5/7", b"")
    with pytest.raises(StorageUnavailable):
        await store.list_objects("data/")
    with pytest.raises(StorageUnavailable):
        await store.delete_many(["data/a", "wal/1/5/7"])
    assert keys_of(wal) == []


async def test_metrics_tell_the_stores_apart(tmp_path: Path) -> None:
    registry = Registry()
    pool = ThreadPool(1)
    store = await open_store(
        f"file://{tmp_path}/main", pool=pool, rng=random.Random(1), registry=registry, wal=f"file://{tmp_path}/wal"
    )
    await store.put("data/a", b"12345")
    await store.put_if_absent("wal/1/5/7", b"123")
    found = {
        (sample.name, sample.labels): sample.value
        for sample in registry.samples()
        if sample.name in ("firn_store_requests_total", "firn_store_bytes_total") and sample.value
    }
    assert found == {
        ("firn_store_requests_total", (("kind", "data"), ("operation", "put"), ("outcome", "ok"))): 1,
        (
            "firn_store_requests_total",
            (("kind", "wal"), ("operation", "put_if_absent"), ("outcome", "ok"), ("store", "wal")),
        ): 1,
        ("firn_store_bytes_total", (("direction", "up"),)): 5,
        ("firn_store_bytes_total", (("direction", "up"), ("store", "wal"))): 3,
    }
    assert (tmp_path / "main/data/a").is_file()
    assert (tmp_path / "wal/wal/1/5/7").is_file()
    main = directory_of(store)
    assert main is not None
    assert main.root == tmp_path / "main"
    assert len(stores_of(store)) == 2
    await store.close()
    pool.close()


async def test_one_store_is_what_it_was(tmp_path: Path) -> None:
    pool = ThreadPool(1)
    store = await open_store(f"file://{tmp_path}", pool=pool, rng=random.Random(1), wal="")
    assert isinstance(store, DirectoryStore)
    assert (main_of(store), stores_of(store)) == (store, (store,))
    metered = await open_store(f"file://{tmp_path}", pool=pool, rng=random.Random(1), registry=Registry())
    assert isinstance(metered, MeteredStore)
    await store.close()
    pool.close()


def test_a_store_is_not_its_own_wal_store() -> None:
    check_locations("s3://bucket/a", "")
    check_locations("s3://bucket/a", "s3://bucket/b")
    check_locations("s3://bucket/a", "s3://bucket/a?endpoint=http://fast:9000")
    check_locations("file:///a", "s3://bucket/a")
    for url in ("s3://bucket/a", "s3://bucket/a?region=eu-central-1&sse=AES256"):
        with pytest.raises(ConfigError, match="is both the store and the WAL store"):
            check_locations("s3://bucket/a", url)
    with pytest.raises(ConfigError, match="has no scheme"):
        check_locations("file:///a", "fast")
