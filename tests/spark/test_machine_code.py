"""Kernels as machine code: loaded without their compiler, refused where that cannot be, and kept only where nobody else writes."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from app.core.units import Offset
from app.records.builder import build_batch
from pyspark_firn import batch_table, machine_code
from pyspark_firn.machine_code import Compiled, Kernels, load_kernels
from pyspark_firn.relocatable import LoadedObject, UnsupportedObject

needs_x86 = pytest.mark.skipif(
    not sys.platform.startswith("linux") or platform.machine() != "x86_64",
    reason="machine code is loaded on x86-64 Linux",
)
RECORDS = [(1_700_000_000_000, b"key", b"value", (("name", b"content"),)), (1_700_000_000_001, None, None, ())]


def table_of(kernels: Kernels, raw: bytes) -> tuple[tuple[int, ...], list[list[int]]]:
    data = np.frombuffer(raw, np.uint8)
    table = np.zeros((2, batch_table.BATCH_FIELDS), np.int64)
    return kernels.scan_batches(data, table, 0, 9), table.tolist()


@pytest.fixture(scope="module")
def scan() -> Compiled:
    """The smallest kernel's object file."""
    return next(one for one in machine_code.compiled_kernels() if one.name == "scan_batches")


@needs_x86
def test_machine_code_answers_what_numba_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> Any:
        raise UnsupportedObject("for this test")

    loaded = load_kernels()
    monkeypatch.setattr(machine_code, "compiled_kernels", refuse)
    by_numba = load_kernels.__wrapped__()
    assert "numba" in type(by_numba.scan_batches).__module__
    assert "numba" not in type(loaded.scan_batches).__module__
    batches = build_batch(RECORDS, base_offset=Offset(7)) + build_batch(RECORDS, base_offset=Offset(9))
    for raw in (batches, batches[:-1], batches[1:], b""):
        assert table_of(loaded, raw) == table_of(by_numba, raw)
    assert table_of(loaded, batches)[0] == (2, 1, 0)


@needs_x86
def test_an_array_of_another_kind_is_not_given_to_machine_code() -> None:
    kernels = load_kernels()
    data = np.zeros(100, np.uint8)
    for table in (
        np.zeros((2, batch_table.BATCH_FIELDS), np.int32),
        np.zeros(2 * batch_table.BATCH_FIELDS, np.int64),
        np.zeros((2, 2 * batch_table.BATCH_FIELDS), np.int64)[:, ::2],
    ):
        with pytest.raises(AssertionError):
            kernels.scan_batches(data, table, 0, 9)


@needs_x86
def test_an_object_file_that_is_not_whole_is_refused(scan: Compiled) -> None:
    assert scan.symbol in LoadedObject(scan.code).addresses
    for size in (0, 3, 63, 64, 200, len(scan.code) // 2, len(scan.code) - 1):
        with pytest.raises(UnsupportedObject):
            LoadedObject(scan.code[:size])


@needs_x86
def test_an_object_file_for_another_processor_is_refused(scan: Compiled) -> None:
    aarch64 = scan.code[:18] + (183).to_bytes(2, "little") + scan.code[20:]
    with pytest.raises(UnsupportedObject, match="machine 183"):
        LoadedObject(aarch64)


def test_code_is_kept_for_the_next_process_and_for_nobody_elses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"")
    monkeypatch.setattr(machine_code, "cache_folders", lambda: [tmp_path / "file" / "none", tmp_path / "kept"])
    code = [Compiled("scan_batches", "symbol", b"code")]
    machine_code.keep_code(msgspec.msgpack.encode(code), "name")
    kept = tmp_path / "kept" / "name"
    assert os.listdir(tmp_path / "kept") == ["name"]
    assert machine_code.kept_code(kept) == code
    assert machine_code.kept_code(tmp_path / "file" / "none" / "name") is None
    kept.chmod(0o622)
    assert machine_code.kept_code(kept) is None
    kept.chmod(0o600)
    whole = kept.read_bytes()
    for damaged in (whole[:-1], whole[:-4] + bytes(4), b""):
        kept.write_bytes(damaged)
        assert machine_code.kept_code(kept) is None


def test_kept_code_is_not_compiled_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = machine_code.compiled_kernels()

    def refuse(*_: Any, **__: Any) -> Any:
        raise subprocess.SubprocessError("compiled again")

    monkeypatch.setattr(subprocess, "run", refuse)
    assert [one.name for one in machine_code.compiled_kernels()] == [one.name for one in compiled]
    monkeypatch.setattr(machine_code, "cache_folders", lambda: [tmp_path])
    with pytest.raises(subprocess.SubprocessError, match="compiled again"):
        machine_code.compiled_kernels()
