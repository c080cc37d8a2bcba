"""The kernels as machine code, without the compiler that made it.

numba and LLVM in a task's process take more memory than its records, and time before its first record. So a process that ends
when it is done compiles ``kernels.py`` (``compiling.py``), its code is kept in a file, and tasks load that (``relocatable.py``).
Where that cannot be done - on another processor than x86-64, say - numba runs the kernels in the task. Both are called alike.

The file lies beside this one or, if that cannot be written, in a folder of the user's; so only the first process on a machine
waits for the compiler.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import pkgutil
import platform
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module, metadata
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa

from pyspark_firn.relocatable import LoadedObject, UnsupportedObject

COMPILE_DEADLINE_S: Final = 300.0
_DIGEST_BYTES: Final = hashlib.sha256().digest_size
"""A file of code begins with its SHA-256: nothing is run that is not whole."""
SOURCES: Final = ("kernels.py", "batch_table.py", "compiling.py")
_log = logging.getLogger(__name__)


class Argument(NamedTuple):
    """A number, or an array of that many dimensions, contiguous."""

    kind: str
    dimensions: int = 1


class Kernel(NamedTuple):
    """A function of ``kernels.py``; ``results`` int64 come out of it."""

    name: str
    arguments: tuple[Argument, ...]
    results: int


NUMBER: Final = Argument("int64", 0)
TABLE: Final = Argument("int64", 2)
BYTES, INT32S, INT64S = Argument("uint8"), Argument("int32"), Argument("int64")
_BINARY: Final = (INT32S, BYTES, BYTES)
"""Ends, bytes, validity of a column."""
KERNELS: Final = (
    Kernel("scan_batches", (BYTES, TABLE, NUMBER, NUMBER), 3),
    Kernel(
        "read_records",
        (
            BYTES,
            TABLE,
            NUMBER,
            NUMBER,
            NUMBER,
            NUMBER,
            NUMBER,
            INT64S,
            INT64S,
            *_BINARY,
            *_BINARY,
            INT64S,
            INT32S,
            INT64S,
        ),
        5,
    ),
    Kernel("header_sizes", (BYTES, INT64S, INT32S), 2),
    Kernel("read_headers", (BYTES, INT64S, INT32S, INT32S, INT32S, BYTES, INT32S, BYTES, BYTES), 1),
)


class Compiled(msgspec.Struct, frozen=True, array_like=True):
    """A kernel's object file, and the symbol of the kernel in it."""

    name: str
    symbol: str
    code: bytes


class Kernels(NamedTuple):
    """The kernels that decoding calls; ``kernels.py`` documents each."""

    scan_batches: Callable[..., Any]
    read_records: Callable[..., Any]
    header_sizes: Callable[..., Any]
    read_headers: Callable[..., Any]


@functools.cache
def load_kernels() -> Kernels:
    """The kernels, compiled before their first use on this machine."""
    try:
        compiled = {one.name: one for one in compiled_kernels()}
        return Kernels(**{kernel.name: _LoadedKernel(kernel, compiled[kernel.name]) for kernel in KERNELS})
    except (UnsupportedObject, OSError, subprocess.SubprocessError, msgspec.DecodeError) as problem:
        _log.info("The kernels are run by numba: %s", problem)
        found = import_module("pyspark_firn.kernels")
        return Kernels(**{kernel.name: getattr(found, kernel.name) for kernel in KERNELS})


class _LoadedKernel:
    """Calls machine code as numba would (its ``CPUCallConv``): a place for the results, one for an error, then the arguments, an
    array as owner, parent, items, bytes of an item, address, shape and strides. The interpreter is free meanwhile."""

    def __init__(self, kernel: Kernel, compiled: Compiled) -> None:
        self._kernel = kernel
        self._object = LoadedObject(compiled.code)
        words = sum(5 + 2 * argument.dimensions if argument.dimensions else 1 for argument in kernel.arguments)
        kind = ctypes.CFUNCTYPE(ctypes.c_int32, ctypes.c_void_p, ctypes.c_void_p, *[ctypes.c_int64] * words)
        self._call = kind(self._object.addresses[compiled.symbol])
        self._results = ctypes.c_int64 * kernel.results

    def __call__(self, *given: np.ndarray[Any, Any] | int) -> int | tuple[int, ...]:
        words: list[int] = []
        for argument, value in zip(self._kernel.arguments, given, strict=True):
            if isinstance(value, np.ndarray):
                assert value.dtype == argument.kind, (argument, value.dtype)
                assert value.ndim == argument.dimensions, (argument, value.ndim)
                assert value.flags.c_contiguous, argument
                address = pa.py_buffer(value).address  # `value.ctypes.data` takes seven times as long
                words += (0, 0, value.size, value.itemsize, address, *value.shape, *value.strides)
            else:
                assert not argument.dimensions
                words.append(value)
        results, error = self._results(), ctypes.c_void_p()
        status = self._call(ctypes.byref(results), ctypes.byref(error), *words)
        assert status == 0, f"{self._kernel.name} ended with {status}"
        return results[0] if len(results) == 1 else tuple(results)


def compiled_kernels() -> list[Compiled]:
    """The kernels' object files, from the first folder that has them.

    Raises: OSError, subprocess.SubprocessError, msgspec.DecodeError (something else was printed beside them).
    """
    name = f"kernels-{_key()}.msgpack"
    for folder in cache_folders():
        kept = kept_code(folder / name)
        if kept is not None:
            return kept
    # Not from the directory that a task happens to run in (-P), and with the packages that Spark has brought to it.
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pyspark_firn.compiling"],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        check=True,
        timeout=COMPILE_DEADLINE_S,
    )
    compiled = msgspec.msgpack.decode(done.stdout, type=list[Compiled])
    keep_code(done.stdout, name)
    return compiled


def _key() -> str:
    """The inputs of the code: its source, its compiler, and the processor that it is made for."""
    digest = hashlib.sha256(repr(KERNELS).encode())
    for source in SOURCES:
        digest.update(pkgutil.get_data(__package__, source) or b"")
    for package in ("numba", "llvmlite"):
        digest.update(metadata.version(package).encode())
    digest.update(platform.machine().encode())
    with suppress(OSError):
        processor = Path("/proc/cpuinfo").read_text().split("\n\n")[0].splitlines()
        digest.update(
            "".join(sorted(line for line in processor if line.startswith(("flags", "model", "cpu family")))).encode()
        )
    return digest.hexdigest()[:32]


def cache_folders() -> list[Path]:
    """Where code may be kept: executors often run from an image that cannot be written, and without a home."""
    home = Path(os.path.expanduser("~"))
    return [
        Path(__file__).parent / "__pycache__",
        *([home / ".cache" / "firn"] if home.is_absolute() else []),
        Path(tempfile.gettempdir()) / f"firn-kernels-{os.getuid()}",
    ]


def kept_code(path: Path) -> list[Compiled] | None:
    """The code in a file; None if it is missing, not whole, or another user may have written it."""
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if status.st_uid not in (0, os.getuid()) or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                return None
            digest, code = file.read(_DIGEST_BYTES), file.read()
    except OSError:
        return None
    if hashlib.sha256(code).digest() != digest:
        return None  # cut short by a loss of power
    return msgspec.msgpack.decode(code, type=list[Compiled])


def keep_code(code: bytes, name: str) -> None:
    """Write a file of code where the next process will look; it is there whole or not at all."""
    for folder in cache_folders():
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
                file.write(hashlib.sha256(code).digest() + code)
            os.replace(file.name, folder / name)
        except OSError as problem:
            _log.debug("The kernels are not kept in %s: %s", folder, problem)
        else:
            return
