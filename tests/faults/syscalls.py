"""What a broker asked of the kernel, in order, and whether it acknowledged only what was durable.

A pure reading of ``strace -f -yy -xx -s 4096`` output: calls of several threads, cut in two where another came between. A
call counts as begun where its first half is written and as done where its second is. One that strace was ended in has no
second half: it was begun, and what became of it is not known.
"""

from __future__ import annotations

import os.path
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from struct import Struct
from typing import NamedTuple

from app.wire.apikeys import ApiKey
from app.wire.codec import decode_response
from app.wire.header import parse_response_header
from tests.faults.producing import PRODUCE_VERSION

TRACED = "openat,mkdir,mkdirat,pwrite64,pwritev,fdatasync,fsync,sync_file_range,write,writev,sendto,sendmsg"
_CUT = re.compile(r" *<(?:unfinished|detached) \.\.\.>$")
_LINE = re.compile(r"^(\d+) +(.*)$")
_RESUMED = re.compile(r"^<\.\.\. \w+ resumed>(.*)$")
_CALL = re.compile(r"^(\w+)\((.*)\) += (-?\d+)(?:<(.*)>)?", re.DOTALL)
_DESCRIPTOR = re.compile(r"^\d+<((?:[^>]|(?<=-)>)*)>")
_STRING = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')
_HEXADECIMAL = re.compile(r"(?:\\x[0-9a-f]{2})+")
_SIZE = Struct(">i")
_OFFSETS = Struct(">q15xi")
"""Base offset and last offset delta of a batch header."""


class Event(NamedTuple):
    """A call's beginning, or its end with what it answered."""

    name: str
    arguments: str
    result: int | None
    opened: str
    """Path of the descriptor that an ``openat`` answered."""

    @property
    def subject(self) -> str:
        """Path, or addresses, of the first argument's descriptor."""
        found = _DESCRIPTOR.match(self.arguments)
        return _text(found.group(1)) if found else ""

    @property
    def data(self) -> bytes:
        """All bytes that the arguments show."""
        return b"".join(bytes.fromhex(found.replace("\\x", "")) for found in _STRING.findall(self.arguments))


def events(lines: Iterable[str]) -> Iterator[Event]:
    """Each call twice: begun (``result`` is None) and done."""
    begun: dict[str, str] = {}
    for line in lines:
        match = _LINE.match(line.rstrip("\n"))
        if match is None:
            continue
        thread, text = match.groups()
        if _CUT.search(text):
            begun[thread] = _CUT.sub("", text)
            name, _, arguments = begun[thread].partition("(")
            yield Event(name, arguments, None, "")
            continue
        resumed = _RESUMED.match(text)
        if resumed is not None:
            text = begun.pop(thread, "") + resumed.group(1)
        call = _CALL.match(text)
        if call is None:
            continue
        name, arguments, result, opened = call.groups()
        if resumed is None:
            yield Event(name, arguments, None, "")
        yield Event(name, arguments, int(result), _text(opened))


def _text(shown: str | None) -> str:
    """A path, which -xx shows in hexadecimal, perhaps with its device behind it; the addresses of a socket are plain."""
    path = _HEXADECIMAL.match(shown or "")
    return bytes.fromhex(path.group().replace("\\x", "")).decode() if path else shown or ""


@dataclass
class _File:
    written_end: int = 0
    syncing_end: int = 0
    synced_end: int = 0
    name_is_durable: bool = True
    batches: dict[int, int] = field(default_factory=dict)
    """Where a batch ends in the file, by its base offset."""


class Verdict(NamedTuple):
    acknowledged: int
    too_early: list[str]


def acknowledged_too_early(lines: Iterable[str], data_dir: str, partition_dir: str, client_port: int) -> Verdict:
    """Every acknowledgement on the connection of ``client_port`` that left before what it speaks of was durable.

    Durable: fdatasync of the log file began after the batch was written and has returned 0; so has fsync of the partition's
    directory after the file was made, and of the data directory after the partition's was.
    """
    files: dict[str, _File] = {}
    new_names: dict[str, set[str]] = {partition_dir: set(), data_dir: set()}
    syncing_names: dict[str, set[str]] = {}
    acknowledged = 0
    too_early: list[str] = []
    answers = b""
    for event in events(lines):
        path = event.subject
        match event.name:
            case "openat" if event.result is not None and event.result >= 0 and "O_CREAT" in event.arguments:
                if event.opened not in files and event.opened.endswith(".log"):
                    files[event.opened] = _File()
                    new_names.setdefault(os.path.dirname(event.opened), set()).add(event.opened)
            case "mkdir" | "mkdirat" if event.result == 0:
                made = event.data.decode()
                new_names.setdefault(os.path.dirname(made), set()).add(made)
            case "pwrite64" | "pwritev" if event.result is not None and path.endswith(".log"):
                file = files.setdefault(path, _File())
                data = event.data
                position = int(event.arguments.rpartition(",")[2])
                if event.result > 0:
                    file.written_end = max(file.written_end, position + event.result)
                    base_offset, _ = _OFFSETS.unpack_from(data)
                    file.batches[base_offset] = position + event.result
            case "fdatasync" if path in files:
                file = files[path]
                if event.result is None:
                    file.syncing_end = file.written_end
                elif event.result == 0:
                    file.synced_end = max(file.synced_end, file.syncing_end)
            case "fsync" if path in new_names:
                if event.result is None:
                    syncing_names[path] = set(new_names[path])
                elif event.result == 0:
                    new_names[path] -= syncing_names.pop(path, set())
            case "write" | "writev" | "sendto" | "sendmsg" if event.result is None:
                if path.endswith(f":{client_port}]"):
                    answers += event.data
                    while len(answers) >= 4 and len(answers) >= 4 + _SIZE.unpack_from(answers)[0]:
                        (size,) = _SIZE.unpack_from(answers)
                        offset = _acknowledged_offset(answers[4 : 4 + size])
                        answers = answers[4 + size :]
                        if offset is None:
                            continue
                        acknowledged += 1
                        reason = _why_not_durable(files, new_names, data_dir, partition_dir, offset)
                        if reason:
                            too_early.append(f"offset {offset}: {reason}")
    return Verdict(acknowledged, too_early)


def _acknowledged_offset(frame: bytes) -> int | None:
    """The base offset that a Produce response acknowledges."""
    view = memoryview(frame)
    header = parse_response_header(view, ApiKey.PRODUCE, PRODUCE_VERSION)
    answer = decode_response(ApiKey.PRODUCE, PRODUCE_VERSION, view[header.body_start :])
    result = answer.responses[0].partition_responses[0]
    return int(result.base_offset) if result.error_code == 0 else None


def _why_not_durable(
    files: dict[str, _File], new_names: dict[str, set[str]], data_dir: str, partition_dir: str, offset: int
) -> str:
    for path, file in files.items():
        if os.path.dirname(path) != partition_dir or offset not in file.batches:
            continue
        if file.batches[offset] > file.synced_end:
            return f"written to {path}, not synced"
        if path in new_names[partition_dir]:
            return f"the name of {path} is not synced"
        if partition_dir in new_names[data_dir]:
            return f"the name of {partition_dir} is not synced"
        return ""
    return "never written"
