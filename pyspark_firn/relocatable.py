"""Loading the machine code of an ELF object file, for kernels that were compiled in another process.

A compiler that stays loaded to run four functions costs a process more memory than the records it reads. Such functions need
little of a loader: their sections in one mapping, addresses filled in, and that mapping made executable. That is done here for
x86-64 (ELF-64, System V ABI); an object that needs more is refused, and its caller has another way.

Written after the ELF-64 object file format and the System V ABI's AMD64 supplement.
"""

from __future__ import annotations

import ctypes
import mmap
import platform
import struct
import sys
from dataclasses import dataclass
from struct import Struct, pack_into
from typing import Final

_ELF: Final = b"\x7fELF\x02\x01\x01"
"""64 bits, little-endian, version 1."""
_MACHINE_X86_64: Final = 62
_HEADER: Final = Struct("<16sHHIQQQIHHHHHH")
_SECTION: Final = Struct("<IIQQQQIIQQ")
_SYMBOL: Final = Struct("<IBBHQQ")
_RELOCATION: Final = Struct("<QQq")

_PROGBITS, _SYMTAB, _RELA, _NOBITS = 1, 2, 4, 8
_ALLOCATED: Final = 0x2
_UNDEFINED, _ABSOLUTE, _COMMON = 0, 0xFFF1, 0xFFF2
_R_64, _R_PC32, _R_PLT32, _R_PC64 = 1, 2, 4, 24
_EXTERNAL: Final = ("memcpy", "memmove", "memset")
"""The functions that a kernel may call: a compiler makes calls of them out of loops."""


class UnsupportedObject(Exception):
    """Not an object that can be loaded here; the message says why."""


@dataclass(frozen=True, slots=True)
class _Section:
    kind: int
    flags: int
    offset: int
    size: int
    link: int
    info: int
    alignment: int


class LoadedObject:
    """The functions of an object file, by symbol. They stay for as long as this does."""

    def __init__(self, data: bytes) -> None:
        """Raises: UnsupportedObject, OSError (no memory may be made executable)."""
        if not sys.platform.startswith("linux") or platform.machine() != "x86_64":
            raise UnsupportedObject(f"only x86-64 Linux, not {sys.platform} on {platform.machine()}")
        try:
            self.addresses = self._load(data)
        except (struct.error, IndexError, ValueError) as error:
            raise UnsupportedObject(f"not a whole object file: {error}") from error

    def _load(self, data: bytes) -> dict[str, int]:
        sections = _sections(data)
        symbol_tables = [section for section in sections if section.kind == _SYMTAB]
        if len(symbol_tables) != 1:
            raise UnsupportedObject(f"{len(symbol_tables)} symbol tables")
        names = sections[symbol_tables[0].link]
        symbols = list(_SYMBOL.iter_unpack(_bytes_of(data, symbol_tables[0])))

        # Where everything goes: sections that are part of the running code, then variables that only have a size.
        placed: dict[int, int] = {}
        end = 0
        for index, section in enumerate(sections):
            if section.flags & _ALLOCATED and section.kind in (_PROGBITS, _NOBITS):
                placed[index] = _aligned(end, section.alignment)
                end = placed[index] + section.size
        common: dict[int, int] = {}
        for number, (_, _, _, index, alignment, size) in enumerate(symbols):
            if index == _COMMON:
                common[number] = _aligned(end, alignment)
                end = common[number] + size

        self._memory = mmap.mmap(-1, max(end, 1), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        base = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        for index, at in placed.items():
            if sections[index].kind == _PROGBITS:
                self._memory[at : at + sections[index].size] = _bytes_of(data, sections[index])

        def address_of(number: int) -> int:
            name, _, _, index, value, _ = symbols[number]
            if index == _ABSOLUTE:
                return int(value)
            if index == _COMMON:
                return base + common[number]
            if index == _UNDEFINED:
                return _external(_name(data, names, name))
            if index not in placed:
                raise UnsupportedObject(f"an address in section {index}, which is not loaded")
            return base + placed[index] + int(value)

        for section in sections:
            if section.kind != _RELA or section.info not in placed:
                continue
            for offset, info, addend in _RELOCATION.iter_unpack(_bytes_of(data, section)):
                at = placed[section.info] + offset
                self._relocate(at, base + at, info & 0xFFFFFFFF, address_of(info >> 32) + addend)
        self._make_executable(base)
        return {
            _name(data, names, name): base + placed[index] + value
            for name, _, _, index, value, _ in symbols
            if name and index in placed
        }

    def _relocate(self, at: int, place: int, kind: int, target: int) -> None:
        if kind == _R_64:
            pack_into("<Q", self._memory, at, target)
        elif kind == _R_PC64:
            pack_into("<q", self._memory, at, target - place)
        elif kind in (_R_PC32, _R_PLT32) and -(1 << 31) <= target - place < 1 << 31:
            pack_into("<i", self._memory, at, target - place)
        else:
            raise UnsupportedObject(f"relocation {kind}")

    def _make_executable(self, base: int) -> None:
        """Never writable and executable at once, which some systems forbid."""
        libc = ctypes.CDLL(None, use_errno=True)
        libc.mprotect.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
        if libc.mprotect(base, len(self._memory), mmap.PROT_READ | mmap.PROT_EXEC):
            raise OSError(ctypes.get_errno(), "memory cannot be made executable")


def _sections(data: bytes) -> list[_Section]:
    if not data.startswith(_ELF):
        raise UnsupportedObject("not a 64-bit ELF file")
    header = _HEADER.unpack_from(data)
    machine, table, count = header[2], header[6], header[12]
    if machine != _MACHINE_X86_64:
        raise UnsupportedObject(f"code for machine {machine}")
    found = []
    for index in range(count):
        _, kind, flags, _, offset, size, link, info, alignment, _ = _SECTION.unpack_from(
            data, table + index * _SECTION.size
        )
        found.append(_Section(kind, flags, offset, size, link, info, alignment))
    return found


def _bytes_of(data: bytes, section: _Section) -> bytes:
    found = data[section.offset : section.offset + section.size]
    if len(found) != section.size:
        raise UnsupportedObject("not a whole object file: a section reaches past its end")
    return found


def _name(data: bytes, names: _Section, at: int) -> str:
    start = names.offset + at
    return data[start : data.index(0, start)].decode()


def _external(name: str) -> int:
    if name not in _EXTERNAL:
        raise UnsupportedObject(f"it calls {name}")
    address = ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value
    assert address is not None
    return address


def _aligned(position: int, alignment: int) -> int:
    return -(-position // max(alignment, 1)) * max(alignment, 1)
