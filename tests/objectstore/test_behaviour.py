"""What every object store promises, held against every adapter (the promises are those of ``app/objectstore/api.py``)."""

from __future__ import annotations

import asyncio
import contextlib
import random

import pytest

from app.objectstore.api import AlreadyExists, InvalidKey, ObjectMissing, ObjectStore, RangeUnsatisfiable


async def keys_of(store: ObjectStore, prefix: str, **options: object) -> list[str]:
    return [info.key for info in await store.list_objects(prefix, **options)]  # type: ignore[arg-type]


def part(store: ObjectStore, letter: bytes, extra: int = 0) -> bytes:
    """A part as small as the store allows before the last one."""
    return letter * (max(store.part_bytes_min, 10) + extra)


@pytest.mark.ci
async def test_what_was_put_is_read_back(store: ObjectStore) -> None:
    await store.put("a/b/c.seg", b"hello")
    assert await store.get("a/b/c.seg") == b"hello"
    info = await store.head("a/b/c.seg")
    assert (info.key, info.size_bytes) == ("a/b/c.seg", 5)


async def test_put_overwrites(store: ObjectStore) -> None:
    await store.put("k", b"a long first value")
    await store.put("k", b"short")
    assert await store.get("k") == b"short"


async def test_any_buffer_can_be_put(store: ObjectStore) -> None:
    for kind in (bytes, bytearray, memoryview):
        key = kind.__name__
        await store.put(f"put/{key}", kind(b"value"))
        await store.put_if_absent(f"new/{key}", kind(b"value"))
        upload = await store.begin_upload(f"parts/{key}")
        await upload.put_part(1, kind(b"value"))
        await upload.complete()
        for way in ("put", "new", "parts"):
            assert await store.get(f"{way}/{key}") == b"value"


async def test_an_object_may_be_empty(store: ObjectStore) -> None:
    await store.put_if_absent("empty", b"")
    assert await store.get("empty") == b""
    assert await store.get_tail("empty", 10) == (b"", 0)
    assert (await store.head("empty")).size_bytes == 0
    with pytest.raises(RangeUnsatisfiable):
        await store.get_range("empty", 0, 1)


async def test_a_missing_object_is_missing_however_it_is_read(store: ObjectStore) -> None:
    await store.put("there/is", b"x")
    for key in ("gone", "there", "there/is/not"):
        for read in (
            store.get(key),
            store.get_range(key, 0, 1),
            store.get_tail(key, 1),
            store.head(key),
        ):
            with pytest.raises(ObjectMissing):
                await read


async def test_a_range_is_half_open_and_ends_with_the_object(store: ObjectStore) -> None:
    await store.put("k", b"0123456789")
    assert await store.get_range("k", 0, 1) == b"0"
    assert await store.get_range("k", 3, 7) == b"3456"
    assert await store.get_range("k", 9, 10) == b"9"
    assert await store.get_range("k", 8, 1000) == b"89"
    for start in (10, 11, 1000):
        with pytest.raises(RangeUnsatisfiable):
            await store.get_range("k", start, start + 1)


async def test_the_tail_comes_with_the_size(store: ObjectStore) -> None:
    await store.put("k", b"0123456789")
    assert await store.get_tail("k", 3) == (b"789", 10)
    assert await store.get_tail("k", 10) == (b"0123456789", 10)
    assert await store.get_tail("k", 99) == (b"0123456789", 10)


async def test_put_if_absent_writes_once_and_then_says_exists(store: ObjectStore) -> None:
    await store.put_if_absent("log/1", b"first")
    with pytest.raises(AlreadyExists):
        await store.put_if_absent("log/1", b"second")
    assert await store.get("log/1") == b"first"


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
@pytest.mark.parametrize("size", [65_535, 65_536, 300_000])
async def test_put_if_absent_writes_large_objects_of_any_kind_of_bytes(
    store: ObjectStore, kind: type, size: int
) -> None:
    value = bytes(range(251)) * (size // 251 + 1)
    value = value[:size]
    await store.put_if_absent("large", kind(value))
    assert await store.get("large") == value


async def test_put_if_absent_succeeds_again_after_a_deletion(store: ObjectStore) -> None:
    await store.put_if_absent("log/1", b"first")
    await store.delete("log/1")
    await store.put_if_absent("log/1", b"second")
    assert await store.get("log/1") == b"second"


async def test_of_many_writers_of_one_key_one_wins(store: ObjectStore) -> None:
    for turn in range(3):
        key = f"log/{turn}"
        values = [f"writer {number}".encode() for number in range(12)]
        results = await asyncio.gather(*(store.put_if_absent(key, value) for value in values), return_exceptions=True)
        winners = [number for number, result in enumerate(results) if result is None]
        assert len(winners) == 1
        assert all(isinstance(result, AlreadyExists) for result in results if result is not None)
        assert await store.get(key) == values[winners[0]]


async def test_deleting_is_idempotent(store: ObjectStore) -> None:
    await store.put("a/b", b"x")
    await store.delete("a/b")
    await store.delete("a/b")
    await store.delete("never/was")
    with pytest.raises(ObjectMissing):
        await store.get("a/b")
    assert await keys_of(store, "") == []


async def test_many_keys_are_deleted_at_once(store: ObjectStore) -> None:
    for number in range(5):
        await store.put(f"d/{number}", b"x")
    await store.delete_many([])
    await store.delete_many(["d/0", "d/1", "d/3", "d/absent"])
    assert await keys_of(store, "") == ["d/2", "d/4"]


async def test_list_is_in_byte_order_across_directories(store: ObjectStore) -> None:
    keys = ["a-b", "a.b", "a/b", "a/b-c", "a0", "B", "a/c/d", "a/c-", "a/c.", "a_b", "b/0/1", "b/00"]
    for key in keys:
        await store.put(key, b"x")
    assert await keys_of(store, "") == sorted(keys)


async def test_list_answers_only_its_prefix_wherever_that_ends(store: ObjectStore) -> None:
    keys = ["t/1/log/0", "t/1/log/1", "t/1/snapshot/1", "t/10/log/0", "t/2/log/0", "u"]
    for key in keys:
        await store.put(key, b"x")
    for prefix in ("t/1/log/", "t/1/", "t/1", "t/", "t", "", "t/1/log/0", "u", "x", "t/1/log/00", "t/1/l"):
        assert await keys_of(store, prefix) == sorted(key for key in keys if key.startswith(prefix)), prefix


async def test_list_starts_after_any_string(store: ObjectStore) -> None:
    keys = ["a/1", "a/2", "a/2/x", "b/1", "b/1-1", "b.x", "c"]
    keys.remove("a/2")
    keys.remove("b/1")
    for key in keys:
        await store.put(key, b"x")
    for after in ("a", "a/1", "a/2", "a/2/", "a/2/x", "a/3", "b", "b.", "b/1", "b/1-", "bb", "c", "d", "0"):
        assert await keys_of(store, "", start_after=after) == sorted(key for key in keys if key > after), after
        assert await keys_of(store, "b", start_after=after) == sorted(k for k in keys if k > after and k[0] == "b")


async def test_pages_of_a_list_join_to_the_whole(store: ObjectStore) -> None:
    rng = random.Random(4)
    keys = sorted({"/".join(rng.choice(["a", "ab", "b-c", "c.d"]) for _ in range(3)) + f"/{n}" for n in range(30)})
    for key in keys:
        await store.put(key, b"x")
    found: list[str] = []
    while page := await keys_of(store, "", start_after=found[-1] if found else "", limit=7):
        found += page
        if len(page) < 7:
            break
    assert found == keys


async def test_list_tells_sizes_and_times(store: ObjectStore) -> None:
    await store.put("k", b"12345")
    [info] = await store.list_objects("")
    assert info == await store.head("k")


async def test_an_upload_is_its_parts_in_number_order(store: ObjectStore) -> None:
    one, two, three = part(store, b"1"), part(store, b"2"), b"3" * 3
    upload = await store.begin_upload("big/one")
    assert upload.key == "big/one"
    await upload.put_part(2, two)
    await upload.put_part(3, three)
    await upload.put_part(1, one)
    with pytest.raises(ObjectMissing):
        await store.head("big/one")
    await upload.complete()
    assert await store.get("big/one") == one + two + three
    assert await store.list_uploads("") == []
    assert await keys_of(store, "") == ["big/one"]


async def test_an_upload_may_have_one_small_part(store: ObjectStore) -> None:
    upload = await store.begin_upload("small")
    await upload.put_part(1, b"x")
    await upload.complete()
    assert await store.get("small") == b"x"


@pytest.mark.ci
async def test_parts_may_have_different_sizes_and_come_in_any_order(store: ObjectStore) -> None:
    for turn, order in enumerate(([3, 1, 2], [2, 3, 1], [1, 3, 2], [3, 2, 1])):
        parts = {1: part(store, b"a", 7), 2: part(store, b"b"), 3: b"the end"}
        upload = await store.begin_upload(f"odd/{turn}")
        for number in order:
            await upload.put_part(number, parts[number])
        await upload.complete()
        assert await store.get(f"odd/{turn}") == parts[1] + parts[2] + parts[3]


async def test_a_repeated_part_replaces(store: ObjectStore) -> None:
    upload = await store.begin_upload("k")
    await upload.put_part(1, part(store, b"x"))
    await upload.put_part(2, b"a longer last part")
    await upload.put_part(1, part(store, b"y", 5))
    await upload.put_part(2, b"the last")
    await upload.complete()
    assert await store.get("k") == part(store, b"y", 5) + b"the last"


async def test_parts_may_be_put_at_the_same_time(store: ObjectStore) -> None:
    parts = [part(store, bytes([65 + number])) for number in range(4)]
    upload = await store.begin_upload("k")
    await asyncio.gather(*(upload.put_part(number, data) for number, data in enumerate(parts, 1)))
    await upload.complete()
    assert await store.get("k") == b"".join(parts)


async def test_an_upload_completes_only_if_its_key_is_free(store: ObjectStore) -> None:
    upload = await store.begin_upload("k")
    await upload.put_part(1, b"late")
    await store.put_if_absent("k", b"early")
    with pytest.raises(AlreadyExists):
        await upload.complete()
    assert await store.get("k") == b"early"
    await upload.abort()
    assert await store.list_uploads("") == []


async def test_of_many_uploads_of_one_key_one_wins(store: ObjectStore) -> None:
    uploads = [await store.begin_upload("k") for _ in range(6)]
    for number, upload in enumerate(uploads):
        await upload.put_part(1, f"upload {number}".encode())
    results = await asyncio.gather(*(upload.complete() for upload in uploads), return_exceptions=True)
    winners = [number for number, result in enumerate(results) if result is None]
    assert len(winners) == 1
    assert all(isinstance(result, AlreadyExists) for result in results if result is not None)
    assert await store.get("k") == f"upload {winners[0]}".encode()


async def test_completing_again_changes_nothing(store: ObjectStore) -> None:
    upload = await store.begin_upload("k")
    await upload.put_part(1, b"x")
    await upload.complete()
    with contextlib.suppress(AlreadyExists):
        await upload.complete()
    assert await store.get("k") == b"x"


async def test_an_aborted_upload_is_gone(store: ObjectStore) -> None:
    upload = await store.begin_upload("k")
    await upload.put_part(1, b"x")
    await upload.abort()
    await upload.abort()
    with pytest.raises(ObjectMissing):
        await upload.put_part(2, b"y")
    with pytest.raises(ObjectMissing):
        await upload.complete()
    assert await store.list_uploads("") == []
    with pytest.raises(ObjectMissing):
        await store.get("k")


async def test_uploads_under_way_are_listed_by_prefix_and_aborted_by_id(store: ObjectStore) -> None:
    first = await store.begin_upload("data/a")
    second = await store.begin_upload("data/b")
    third = await store.begin_upload("other/c")
    await second.put_part(1, b"x")
    assert [(info.key, info.upload_id) for info in await store.list_uploads("data/")] == [
        ("data/a", first.upload_id),
        ("data/b", second.upload_id),
    ]
    assert await keys_of(store, "") == []
    await store.abort_upload("data/b", second.upload_id)
    await store.abort_upload("data/b", second.upload_id)
    assert [info.key for info in await store.list_uploads("")] == ["data/a", "other/c"]
    with pytest.raises(ObjectMissing):
        await second.complete()
    await first.abort()
    await third.abort()


BAD_KEYS = ["", "/", "/etc/passwd", "../x", "a/../b", "a/./b", "a//b", "a/", ".hidden", "a/.hidden"]
BAD_KEYS += ["a b", "a\n", "a\0", "ä", "x" * 900, "x" * 250]


async def test_a_key_that_could_escape_or_hide_is_refused(store: ObjectStore) -> None:
    for key in BAD_KEYS:
        for call in (
            store.get(key),
            store.get_range(key, 0, 1),
            store.get_tail(key, 1),
            store.head(key),
            store.put(key, b""),
            store.put_if_absent(key, b""),
            store.delete(key),
            store.delete_many([key]),
            store.begin_upload(key),
            store.abort_upload(key, "1"),
        ):
            with pytest.raises(InvalidKey):
                await call


async def test_a_prefix_is_the_beginning_of_a_key(store: ObjectStore) -> None:
    for prefix in ("/", "../", "a//", "a/../b", ".", "a/.b", "a b"):
        with pytest.raises(InvalidKey):
            await store.list_objects(prefix)
        with pytest.raises(InvalidKey):
            await store.list_uploads(prefix)
