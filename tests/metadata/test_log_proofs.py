"""Proofs of the cluster log (ADR 0036): what an attacker who writes into the bucket can do, and what rolling changes of keys do."""

from __future__ import annotations

import base64
import hashlib
import hmac
import random
import struct
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from app.core.errors import ConfigError, CorruptionError, StorageUnavailable
from app.core.units import TimestampMs
from app.metadata.log import log_format
from app.metadata.log.log_format import (
    HEADER_KEY,
    KeyValue,
    SnapshotReader,
    decode_proven,
    encode_entry,
    encode_key,
    encode_value,
    iter_snapshot,
    proven,
)
from app.metadata.log.log_proofs import NO_MARK, LogKey, Mark, Proofs, Untrusted, parse_keys
from app.metadata.log.numbered_log import NumberedLog
from app.objectstore.directory import DirectoryStore
from app.records.record import iter_records
from tests.metadata.support import QUICK, FixedClock, Replay, key, value

A, B, C = (base64.b64encode(bytes([number]) * 32).decode() for number in (1, 2, 3))
ENTRY, SNAPSHOT = "cluster/log/{:020d}", "cluster/snapshot/{:020d}"


def keys(*texts: str) -> tuple[LogKey, ...]:
    return parse_keys(",".join(texts))


def log_of(
    store: DirectoryStore, name: str, *texts: str, introducing: bool = False, proofs: bool = True
) -> NumberedLog[Replay]:
    """``proofs``: whether it is a broker's; readers without a key ask for none."""
    return NumberedLog(
        store,
        "cluster",
        writer_id=name,
        rng=random.Random(name),
        clock=FixedClock(),
        new_state=Replay,
        timings=QUICK,
        proofs=Proofs(keys(*texts) if texts else (), introducing=introducing) if proofs else None,
    )


async def sealed(log: NumberedLog[Replay]) -> NumberedLog[Replay]:
    await log.load()
    log.epoch = log.writer.epoch + 1
    await log.seal(log.next_sequence)
    return log


async def write(log: NumberedLog[Replay], count: int = 3) -> NumberedLog[Replay]:
    for _ in range(count):
        await log.append(log.next_sequence, [(key(log.next_sequence), value(log.next_sequence))])
    return log


@pytest.fixture
def store(tmp_path: Path) -> DirectoryStore:
    return DirectoryStore(tmp_path)


def file(tmp_path: Path, sequence: int) -> Path:
    return tmp_path / ENTRY.format(sequence)


def forged(path: Path, sequence: int, *, keep_proof: bool = True, **changes: object) -> bytes:
    """The entry of a file with changes, and its proof as it was."""
    entry, _, proof = decode_proven("", int(path.name), path.read_bytes())
    fields = {**entry._asdict(), "sequence": sequence, **changes}
    return encode_entry(**fields, prove=lambda _: proof if keep_proof else None)  # type: ignore[arg-type]


async def refused(store: DirectoryStore, *texts: str, introducing: bool = False) -> str:
    """Why a broker that starts now does not."""
    told: list[Untrusted] = []
    log = log_of(store, "reader", *texts, introducing=introducing)
    log.on_untrusted = told.append
    with pytest.raises(Untrusted) as error:
        await log.load()
    assert [str(one) for one in told] == [str(error.value)]
    return str(error.value)


# --- who has no key -------------------------------------------------------------------------------------------------


async def test_a_broker_with_the_key_reads_what_another_wrote_and_so_does_who_asks_for_no_proof(
    store: DirectoryStore,
) -> None:
    written = await write(await sealed(log_of(store, "w", A)), 5)
    await written.snapshot()
    await write(written, 2)
    for reader in (log_of(store, "r", A), log_of(store, "r", C, A), log_of(store, "r", proofs=False)):
        await reader.load()
        assert dict(reader.live) == dict(written.live)


async def test_without_a_key_every_byte_is_as_before(tmp_path: Path) -> None:
    bytes_of = []
    for name, proofs in (("with", True), ("without", False)):
        store = DirectoryStore(tmp_path / name)
        log = await write(await sealed(log_of(store, "w", proofs=proofs)), 5)
        await log.snapshot()
        assert not log.proofs_differ
        bytes_of.append([path.read_bytes() for path in sorted((tmp_path / name / "cluster").rglob("[0-9]*"))])
    assert bytes_of[0] == bytes_of[1]
    assert len(bytes_of[0]) == 7


@pytest.mark.parametrize(
    "changes",
    [
        {"records": ((key("admin"), value(1)),)},
        {"records": ()},
        {"writer_id": "somebody"},
        {"epoch": 7},
        {"nonce": bytes(16)},
        {"previous": bytes(16)},
        {"timestamp_ms": TimestampMs(5)},
    ],
)
async def test_a_changed_entry_is_refused(store: DirectoryStore, tmp_path: Path, changes: dict[str, object]) -> None:
    await write(await sealed(log_of(store, "w", A)))
    path = file(tmp_path, 2)
    path.write_bytes(forged(path, 2, **changes))
    why = await refused(store, A)
    assert ENTRY.format(2) in why
    assert "was changed" in why
    assert "restore cluster/" in why


async def test_an_entry_is_refused_under_another_number(store: DirectoryStore, tmp_path: Path) -> None:
    log = await write(await sealed(log_of(store, "w", A)))
    end = log.next_sequence
    newest = decode_proven("", end - 1, file(tmp_path, end - 1).read_bytes()).entry
    # The first change is made once more, after all that was made since.
    file(tmp_path, end).write_bytes(forged(file(tmp_path, 1), end, previous=newest.nonce))
    with pytest.raises(Untrusted, match=f"{end}.*lies under another name"):
        await log.poll()
    assert log.next_sequence == end, "it was not applied"
    assert "lies under another name" in await refused(store, A)


async def test_swapped_entries_are_refused(store: DirectoryStore, tmp_path: Path) -> None:
    await write(await sealed(log_of(store, "w", A)))
    first, second = file(tmp_path, 1), file(tmp_path, 2)
    one, other = forged(first, 2), forged(second, 1)
    first.write_bytes(other)
    second.write_bytes(one)
    assert "lies under another name" in await refused(store, A)


async def test_a_log_without_its_middle_is_refused(store: DirectoryStore, tmp_path: Path) -> None:
    await write(await sealed(log_of(store, "w", A)), 4)
    file(tmp_path, 2).unlink()
    with pytest.raises(CorruptionError, match="is missing, or does not follow"):
        await log_of(store, "r", A).load()
    # Renumbered, so that there is no gap.
    for sequence in (3, 4):
        file(tmp_path, sequence - 1).write_bytes(forged(file(tmp_path, sequence), sequence - 1))
    file(tmp_path, 4).unlink()
    assert "lies under another name" in await refused(store, A)


async def test_a_log_without_its_end_is_noticed_by_who_had_read_it(store: DirectoryStore, tmp_path: Path) -> None:
    log = await write(await sealed(log_of(store, "w", A)))
    file(tmp_path, 3).unlink()
    with pytest.raises(CorruptionError, match="was there, and now the log ends at 2"):
        await log.poll()
    later = log_of(store, "r", A)
    await later.load()  # whoever starts cannot know
    assert later.next_sequence == 3


async def test_an_entry_without_a_proof_is_refused(store: DirectoryStore, tmp_path: Path) -> None:
    log = await write(await sealed(log_of(store, "w", A)))
    end = log.next_sequence
    newest = decode_proven("", end - 1, file(tmp_path, end - 1).read_bytes()).entry
    seal = forged(
        file(tmp_path, 0), end, keep_proof=False, previous=newest.nonce, writer_id="mallory", is_seal=True, epoch=9
    )
    file(tmp_path, end).write_bytes(seal)
    with pytest.raises(Untrusted, match="has no proof"):
        await log.poll()
    why = await refused(store, A)
    assert "firn.cluster.log.key.introducing=true" in why


async def test_a_log_that_was_made_anew_without_proofs_is_refused(tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    log = await write(await sealed(log_of(store, "mallory")), 3)
    await log.snapshot()
    assert SNAPSHOT.format(3) in await refused(store, A)


async def test_a_changed_snapshot_is_refused(store: DirectoryStore, tmp_path: Path) -> None:
    log = await write(await sealed(log_of(store, "w", A)), 4)
    await log.snapshot()
    path = tmp_path / SNAPSHOT.format(4)
    reader = SnapshotReader("s", path.read_bytes())
    live = {one: other for records in reader for one, other in records}
    assert reader.start is not None
    start = reader.start
    assert start.proof is not None

    def rewritten(more: dict[bytes, bytes], sequence: int = 4, **changes: object) -> bytes:
        header = proven(start.header, start.proof)  # type: ignore[arg-type]
        for name, changed in {"sequence": sequence, **changes}.items():
            header = type(header)(
                *[changed if field == name else getattr(header, field) for field in header.__struct_fields__]
            )
        return b"".join(iter_snapshot(header, start.writer, more, TimestampMs(1)))

    path.write_bytes(rewritten(live))
    await log_of(store, "r", A).load()  # the same again
    for changed in (
        rewritten({**live, key("admin"): value(1)}),
        rewritten({one: live[one] for one in list(live)[1:]}),
        rewritten(dict(reversed(live.items()))),
        rewritten(live, seals=[]),
        rewritten(live, nonce=bytes(16)),
    ):
        path.write_bytes(changed)
        assert "was changed" in await refused(store, A)
    path.unlink()
    (tmp_path / SNAPSHOT.format(3)).write_bytes(rewritten(live, sequence=3))
    assert "lies under another name" in await refused(store, A)


async def test_another_clusters_key_is_told_from_the_own(store: DirectoryStore) -> None:
    await write(await sealed(log_of(store, "w", A)))
    why = await refused(store, B)
    assert keys(A)[0].key_id.hex() in why
    assert keys(B)[0].key_id.hex() in why


async def test_what_is_handed_on_is_checked_and_the_bucket_decides(store: DirectoryStore, tmp_path: Path) -> None:
    follower = log_of(store, "f", A)
    log = await sealed(log_of(store, "w", A))
    await follower.load()
    told: list[Untrusted] = []
    follower.on_untrusted = told.append
    await write(log, 2)
    first, second = (file(tmp_path, number).read_bytes() for number in (1, 2))
    assert not await follower.take(1, forged(file(tmp_path, 1), 1, records=()))
    assert await follower.take(1, first)
    assert not await follower.take(2, forged(file(tmp_path, 2), 2, keep_proof=False))
    assert await follower.take(2, second)
    assert not told


# --- introducing, changing, taking away -----------------------------------------------------------------------------


async def test_a_key_is_introduced_broker_by_broker(store: DirectoryStore) -> None:
    old = await write(await sealed(log_of(store, "old")), 3)
    await old.snapshot()
    await write(old, 1)
    new = log_of(store, "new", A, introducing=True)
    await sealed(new)  # the first broker with the key becomes the controller
    assert new.proofs_differ
    assert new.snapshot_due, "at once, and not after 64 entries"
    await old.poll()  # and who has no key yet follows
    assert old.next_sequence == new.next_sequence
    assert "has no proof" in await refused(store, A), "who goes on too soon is refused"
    await new.snapshot()
    assert not new.proofs_differ
    strict = log_of(store, "strict", A)
    await strict.load()
    await write(new, 2)
    await strict.poll()
    again = log_of(store, "old again")
    await sealed(again)  # a broker without the key still can be the controller
    await write(again, 1)
    await new.poll()
    assert new.proofs_differ
    with pytest.raises(Untrusted, match="has no proof"):
        await strict.poll()


async def test_a_broker_without_the_key_does_not_join_once_it_was_introduced(store: DirectoryStore) -> None:
    log = await write(await sealed(log_of(store, "w", A)))
    without = log_of(store, "without")
    told: list[Untrusted] = []
    without.on_untrusted = told.append
    with pytest.raises(Untrusted, match="this broker has no key: give it the other"):
        await without.load()
    assert len(told) == 1
    await log.snapshot()
    assert "this broker has no key" in await refused(store)


async def test_a_running_broker_without_the_key_stops_at_the_first_proof_that_must_be(store: DirectoryStore) -> None:
    old = await write(await sealed(log_of(store, "old")), 2)
    introducing = await write(await sealed(log_of(store, "new", A, introducing=True)), 1)
    await introducing.snapshot()
    await old.poll()
    await write(await sealed(log_of(store, "strict", A)), 1)
    with pytest.raises(Untrusted, match="this broker has no key"):
        await old.poll()


async def test_keys_are_changed_and_the_old_one_is_thrown_away(store: DirectoryStore) -> None:
    await write(await sealed(log_of(store, "one", A)), 3)
    both = await write(await sealed(log_of(store, "two", A, B)), 1)
    assert not both.proofs_differ, "A still proves"
    changed = await write(await sealed(log_of(store, "three", B, A)), 1)
    await both.poll()
    assert changed.proofs_differ
    assert keys(A)[0].key_id.hex() in await refused(store, B), "too soon"
    await changed.snapshot()
    last = await write(await sealed(log_of(store, "four", B)), 1)
    assert not last.proofs_differ
    assert keys(B)[0].key_id.hex() in await refused(store, A), "what the old key proves is not enough any more"


async def test_a_key_is_taken_away(store: DirectoryStore) -> None:
    await write(await sealed(log_of(store, "one", A)), 3)
    leaving = await write(await sealed(log_of(store, "two", A, introducing=True)), 1)
    assert leaving.proofs_differ
    await leaving.snapshot()
    last = log_of(store, "three")
    await sealed(last)
    await write(last, 1)
    await leaving.poll()
    assert dict(leaving.live) == dict(last.live)


async def test_the_snapshot_of_another_at_the_same_number_is_not_taken_for_a_proven_one(store: DirectoryStore) -> None:
    await write(await sealed(log_of(store, "old")), 2)
    new = await write(await sealed(log_of(store, "new", A, introducing=True)), 1)
    old = log_of(store, "old too")
    await old.load()
    await old.snapshot()
    await new.snapshot()
    assert new.proofs_differ
    await write(new, 1)
    await new.snapshot()
    assert not new.proofs_differ


# --- bytes, and settings --------------------------------------------------------------------------------------------


def size(data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + data


def test_the_proof_of_an_entry_is_literally_this() -> None:
    name = ENTRY.format(7)
    records: Sequence[KeyValue] = [(encode_key(16, "k"), b"v"), (encode_key(16, "gone"), None)]
    (first,) = keys(A)
    proofs = Proofs([first], introducing=True)
    seen: list[bytes] = []

    def prove(header: bytes) -> object:
        seen.append(header)
        prover = proofs.prover(name, timestamp_ms=1000, header=header)
        assert prover is not None
        prover.add_all(records)
        return prover.proof()

    data = encode_entry(
        7, records, writer_id="w", nonce=bytes(range(16)), is_seal=False, epoch=0, previous=bytes(range(16, 32)),
        timestamp_ms=TimestampMs(1000), prove=prove,  # type: ignore[arg-type]
    )  # fmt: skip
    [header] = seen
    assert header.hex() == "970107a177c410000102030405060708090a0b0c0d0e0fc200c410101112131415161718191a1b1c1d1e1f"
    covered = b"firn cluster log 1\n" + size(name.encode()) + b"\1" + struct.pack(">q", 1000) + size(header)
    covered += size(encode_key(16, "k")) + size(b"v") + size(encode_key(16, "gone")) + b"\xff\xff\xff\xff"
    mac = hmac.new(bytes([1]) * 32, covered, hashlib.sha256).digest()
    key_id = hashlib.sha256(b"firn cluster log key\n" + bytes([1]) * 32).digest()[:8]
    whole = next(record.value for record in iter_records(data, max_bytes=1 << 20) if record.key == HEADER_KEY)
    assert whole == b"\x98" + header[1:] + b"\x94\x01\xc4\x08" + key_id + b"\xc4\x20" + mac + b"\xc3"
    entry, bare, proof = decode_proven(name, 7, data)
    assert bare == header
    checker = proofs.checker(name, proof, timestamp_ms=entry.timestamp_ms, header=bare)
    checker.add_all(entry.records)
    assert checker.check() == Mark(key_id, True)


async def test_the_proof_of_a_snapshot_is_literally_this(store: DirectoryStore, tmp_path: Path) -> None:
    log = await write(await sealed(log_of(store, "w", A)), 2)
    await log.snapshot()
    reader = SnapshotReader("s", (tmp_path / SNAPSHOT.format(2)).read_bytes())
    records = [one for batch in reader for one in batch]
    assert reader.start is not None
    header = encode_value(reader.start.header)
    covered = b"firn cluster log 1\n" + size(SNAPSHOT.format(2).encode()) + b"\0" + bytes(8) + size(header)
    covered += size(b"\x91\x02") + size(reader.start.writer_value)
    covered += b"".join(size(one) + size(other) for one, other in records)
    assert reader.start.proof is not None
    assert reader.start.proof.mac == hmac.new(bytes([1]) * 32, covered, hashlib.sha256).digest()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "no key"),
        ("secret", "key 1 is not base64"),
        (f"{A},c2hvcnQ=", "key 2 has 5 bytes"),
        (f"{A},{A}", "same key twice"),
        (",".join(base64.b64encode(bytes([n]) * 32).decode() for n in range(17)), "17 keys"),
    ],
)
def test_what_is_no_key_is_refused_without_being_shown(text: str, why: str) -> None:
    with pytest.raises(ValueError, match=why) as error:
        parse_keys(text)
    assert A not in str(error.value)
    assert "secret" not in str(error.value)


def test_keys_are_never_shown() -> None:
    shown = repr(keys(A, B)) + repr(Proofs(keys(A)))
    assert A not in shown
    assert repr(bytes([1]) * 32) not in shown
    assert keys(f"{A}\n{B}\n") == keys(A, B), "one a line in a file"


def test_introducing_nothing_is_a_mistake() -> None:
    with pytest.raises(ConfigError, match="no key to introduce"):
        Proofs.of_settings(None, introducing=True)
    assert Proofs.of_settings("", introducing=False).mark is None
    assert NO_MARK.key_id == b""


async def test_an_undecided_append_is_not_taken_for_anothers(store: DirectoryStore) -> None:
    log = await write(await sealed(log_of(store, "w", A)), 1)
    put = store.put_if_absent
    tries: list[str] = []

    async def lost_answer(name: str, data: bytes) -> None:
        await put(name, data)
        tries.append(name)
        if len(tries) == 1:
            raise StorageUnavailable("the answer was lost")

    store.put_if_absent = lost_answer  # type: ignore[method-assign, assignment]
    await write(log, 1)
    assert log.next_sequence == 3


async def test_a_program_that_knows_no_proofs_reads_what_has_them(
    store: DirectoryStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = await write(await sealed(log_of(store, "w", A, introducing=True)), 3)
    await log.snapshot()
    await write(log, 2)
    for name, kind, what in (
        ("_entry_headers", log_format.EntryHeader, "entry header"),
        ("_snapshot_headers", log_format.SnapshotHeader, "snapshot header"),
    ):
        older = log_format.ValueDecoder(kind, 1, what)

        class Older:
            def decode(self, data: bytes, older: Any = older) -> Any:
                found = older.decode(data)
                return SimpleNamespace(**{one: getattr(found, one) for one in found.__struct_fields__}, proof=None)

        monkeypatch.setattr(log_format, name, Older())
    old = log_of(store, "old", proofs=False)
    await old.load()
    assert dict(old.live) == dict(log.live)
