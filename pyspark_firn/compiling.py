"""Kernels to object code, by numba, in a process that ends when it is done.

    python -m pyspark_firn.compiling

writes the code that ``machine_code`` loads to its standard output.
"""

from __future__ import annotations

import sys
from typing import Any

import msgspec
from numba import types as _types
from numba.core import compiler as _compiler
from numba.core.registry import cpu_target as _cpu_target

from pyspark_firn import kernels
from pyspark_firn.machine_code import KERNELS, Argument, Compiled, Kernel

# numba has annotations of few of its functions, and they are not right everywhere.
types: Any = _types
compiler: Any = _compiler
cpu_target: Any = _cpu_target


def compile_kernels() -> list[Compiled]:
    """Every kernel for this machine's processor."""
    return [_compile(kernel) for kernel in KERNELS]


def _compile(kernel: Kernel) -> Compiled:
    flags = compiler.Flags()
    # Wrappers for Python and C are not needed, and they refer to symbols that only numba provides. So does reference counting, and
    # a kernel allocates nothing.
    flags.no_cpython_wrapper = True
    flags.no_cfunc_wrapper = True
    flags.nrt = False
    made = compiler.compile_extra(
        cpu_target.typing_context,
        cpu_target.target_context,
        getattr(kernels, kernel.name).py_func,
        tuple(_numba_type(argument) for argument in kernel.arguments),
        None,
        flags,
        {},
    )
    expected = types.int64 if kernel.results == 1 else types.UniTuple(types.int64, kernel.results)
    assert made.signature.return_type == expected, made.signature
    _, _, (code, _) = made.library.serialize_using_object_code()
    return Compiled(kernel.name, made.fndesc.llvm_func_name, code)


def _numba_type(argument: Argument) -> Any:
    kind = getattr(types, argument.kind)
    return types.Array(kind, argument.dimensions, "C") if argument.dimensions else kind


if __name__ == "__main__":
    sys.stdout.buffer.write(msgspec.msgpack.encode(compile_kernels()))
