"""Operations that numba lacks, written for LLVM directly: an unaligned load, a plain copy, the processor's CRC-32C, a prefetch.

Each operation has one function that names the types and one that generates the code. Compaction spends most of its time here.
"""

from __future__ import annotations

import platform
import sys
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic


def has_crc_instruction() -> bool:
    return platform.machine() in ("x86_64", "AMD64") and bool(llvm.get_host_cpu_features().get("sse4.2"))


def _word(typingctx, data, at):
    """Eight bytes at any address, in the processor's byte order: one load instead of sixteen steps."""

    def generate(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.gep(array.data, [arguments[1]])
        word_type = ir.IntType(64)
        return builder.load(builder.bitcast(place, word_type.as_pointer()), align=1)

    return types.uint64(data, types.int64), generate


def _big_endian_load(bits: int, *, signed: bool) -> Any:
    """A number of a batch's header: one load and one swap of bytes, where a loop over the bytes takes numba long to compile."""

    def load(typingctx, data, at):
        def generate(context, builder, signature, arguments):
            array = context.make_array(signature.args[0])(context, builder, arguments[0])
            number_type, result_type = ir.IntType(bits), ir.IntType(64)
            place = builder.bitcast(builder.gep(array.data, [arguments[1]]), number_type.as_pointer())
            number = builder.load(place, align=1)
            if sys.byteorder == "little":
                number = builder.bswap(number)
            if bits == 64:
                return number
            return builder.sext(number, result_type) if signed else builder.zext(number, result_type)

        return types.int64(data, types.int64), generate

    return load


def _big_endian_store(bits: int) -> Any:
    """Write the lower ``bits`` of a number, as the header of a batch has them."""

    def store(typingctx, data, at, value):
        def generate(context, builder, signature, arguments):
            array = context.make_array(signature.args[0])(context, builder, arguments[0])
            number_type = ir.IntType(bits)
            number = arguments[2] if bits == 64 else builder.trunc(arguments[2], number_type)
            if sys.byteorder == "little":
                number = builder.bswap(number)
            place = builder.bitcast(builder.gep(array.data, [arguments[1]]), number_type.as_pointer())
            builder.store(number, place, align=1)
            return context.get_dummy_value()

        return types.void(data, types.int64, types.int64), generate

    return store


def _copy(typingctx, target, to, source, at, size):
    """``target[to : to + size] = source[at : at + size]``, without numba's check for an overlap."""

    def generate(context, builder, signature, arguments):
        target, to, source, at, size = arguments
        target_data = context.make_array(signature.args[0])(context, builder, target).data
        source_data = context.make_array(signature.args[2])(context, builder, source).data
        cgutils.raw_memcpy(builder, builder.gep(target_data, [to]), builder.gep(source_data, [at]), size, 1)
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64, types.int64), generate


def _crc_word(typingctx, crc, word):
    """Extend a CRC-32C by eight bytes, with the processor's own instruction."""

    def generate(context, builder, signature, arguments):
        word_type = ir.IntType(64)
        kind = ir.FunctionType(word_type, [word_type, word_type])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.x86.sse42.crc32.64.64")
        return builder.call(function, arguments)

    return types.uint64(types.uint64, types.uint64), generate


def _fetch(typingctx, data, at):
    """Make the processor prefetch the memory of ``data[at]``, without waiting."""

    def generate(context, builder, signature, arguments):
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        place = builder.gep(array.data, [arguments[1]])
        flag = ir.IntType(32)
        kind = ir.FunctionType(ir.VoidType(), [place.type, flag, flag, flag])
        function = cgutils.get_or_insert_function(builder.module, kind, "llvm.prefetch.p0")
        to_read, into_all_caches, data_not_code = ir.Constant(flag, 0), ir.Constant(flag, 3), ir.Constant(flag, 1)
        builder.call(function, [place, to_read, into_all_caches, data_not_code])
        return context.get_dummy_value()

    return types.void(data, types.int64), generate


word_at: Any = intrinsic(_word)
i64_at: Any = intrinsic(_big_endian_load(64, signed=True))
i32_at: Any = intrinsic(_big_endian_load(32, signed=True))
u16_at: Any = intrinsic(_big_endian_load(16, signed=False))
put_i64: Any = intrinsic(_big_endian_store(64))
put_i32: Any = intrinsic(_big_endian_store(32))
put_i16: Any = intrinsic(_big_endian_store(16))
copy_bytes: Any = intrinsic(_copy)
crc_word: Any = intrinsic(_crc_word)
fetch_early: Any = intrinsic(_fetch)
