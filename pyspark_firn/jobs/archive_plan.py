"""The plan of one archive run: offset ranges, decided and recorded before the first file. Pure.

A run is a *plan* (which offsets of which partition go into which part) and a *commit* (the files that were written). Parts are
cut by the manifest alone. A part's files are named by its offsets and by the attempt that wrote them, since two attempts at one
part may read different records: the topic may be compacted between them. Which attempt counts, the commit says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from app.core.errors import CorruptionError
from app.metadata.manifest.manifest_state import ManifestState
from pyspark_firn.planning import segments_between

FORMAT_VERSION: Final = 2
"""Of plans and commits. In version 1 files had no attempt in their names, and were there before their commit."""
VERSIONS: Final = (1, FORMAT_VERSION)


@dataclass(frozen=True, slots=True)
class ArchivePart:
    """Offsets [start, end) of one partition."""

    partition: int
    start: int
    end: int

    @property
    def file_stem(self) -> str:
        """The prefix of the names of its files."""
        return f"{self.partition:05d}-{self.start:020d}-{self.end:020d}"


@dataclass(frozen=True, slots=True)
class ArchivePlan:
    """Everything that one run is to write."""

    topic: str
    topic_id: str
    parts: tuple[ArchivePart, ...]

    def encode(self) -> bytes:
        return json.dumps({"version": FORMAT_VERSION, **asdict(self)}).encode()

    def ends(self) -> dict[int, int]:
        """Where each partition of the plan ends."""
        ends: dict[int, int] = {}
        for part in self.parts:
            ends[part.partition] = max(part.end, ends.get(part.partition, 0))
        return ends


def unnamed_files(
    plan: ArchivePlan, before: Mapping[int, int], paths: Iterable[str], named: Container[str]
) -> Iterator[str]:
    """Those of ``paths`` that are not needed once the plan is committed with ``named`` as its files. Pure.

    They are other files of its parts, whichever attempt wrote them, and pending ones of offsets that were committed ``before``
    (next offset by partition): their writers went on after another had finished their run.
    """
    stems = {part.file_stem for part in plan.parts}
    for path in paths:
        found = _FILE_NAME.fullmatch(path.rpartition("/")[2])
        if found is None or path in named or shown_path(path) in named:
            continue
        stem, partition, end, pending = found["stem"], int(found["partition"]), int(found["end"]), found["pending"]
        if stem in stems or (pending and end <= before.get(partition, 0)):
            yield path


def overtaken_files(
    before: Mapping[int, int], ends: Mapping[int, int], paths: Iterable[str], named: Container[str]
) -> Iterator[str]:
    """Those of ``paths`` that no commit of an Iceberg table can name any more, once one from ``before`` to ``ends`` has ``named``.

    Their writers began at or above ``before`` and lost: a table that has changed takes none of their files. Pure.
    """
    for path in paths:
        found = _FILE_NAME.fullmatch(path.rpartition("/")[2])
        if found is None or path in named:
            continue
        partition = int(found["partition"])
        if int(found["start"]) >= before.get(partition, 0) and int(found["end"]) <= ends.get(partition, 0):
            yield path


def pending_path(path: str) -> str:
    """Where a file is until its commit is written: no reader of the folder takes it for one of the archive."""
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}_{name}{PENDING_SUFFIX}"


def shown_path(path: str) -> str:
    """Inverse of ``pending_path``; the path itself if it is not pending."""
    folder, slash, name = path.rpartition("/")
    if name.startswith("_") and name.endswith(PENDING_SUFFIX):
        name = name[1:].removesuffix(PENDING_SUFFIX)
    return f"{folder}{slash}{name}"


PENDING_SUFFIX: Final = ".pending"
_FILE_NAME: Final = re.compile(
    r"_?(?P<stem>(?P<partition>\d{5,})-(?P<start>\d{20})-(?P<end>\d{20}))(?:-[0-9a-f]{32})?(?:-\d+)?\.parquet(?P<pending>\.pending)?"
)


def decode_plan(data: bytes, name: str) -> ArchivePlan:
    """Inverse of ``ArchivePlan.encode``. Raises: CorruptionError."""
    found = decode_document(data, name)
    try:
        parts = tuple(ArchivePart(**part) for part in found["parts"])
        return ArchivePlan(found["topic"], found["topic_id"], parts)
    except (KeyError, TypeError) as error:
        raise CorruptionError(f"{name} is no plan of an archive: {error!r}.") from None


def decode_document(data: bytes, name: str) -> dict[str, Any]:
    """A JSON document of an archive, of a version that is known here. Raises: CorruptionError."""
    try:
        found = json.loads(data)
        version = found["version"]
    except (ValueError, KeyError, TypeError):
        raise CorruptionError(f"{name} is damaged: it is no document of an archive.") from None
    if version not in VERSIONS:
        raise CorruptionError(
            f"{name} has format version {version}, this Firn knows {FORMAT_VERSION}: use a newer one."
        )
    return dict(found)


def cut(
    states: Sequence[ManifestState], done: Mapping[int, int], part_bytes: int, until: Mapping[int, int] | None = None
) -> tuple[ArchivePart, ...]:
    """Parts of about ``part_bytes`` of records, out of the readable records at or above ``done`` (next offset by partition).

    With ``until`` (offsets by partition, all of them tiered) exactly the records below it. Parts end where segments end; only a
    segment longer than a part is cut within.
    """
    parts: list[ArchivePart] = []
    for partition, state in enumerate(states):
        start = max(done.get(partition, 0), state.log_start_offset)
        stop = state.tiered_end if until is None else until.get(partition, start)
        collected = 0.0
        part_start = start
        for entry in segments_between(state, start, stop):
            bytes_per_offset = entry.raw_bytes / (entry.end_offset - entry.base_offset)
            at = max(entry.base_offset, start)
            entry_end = min(entry.end_offset, stop)
            while True:
                left = (entry_end - at) * bytes_per_offset
                if collected + left <= part_bytes:
                    collected += left
                    break
                room = int((part_bytes - collected) / bytes_per_offset)
                # Rather a part that is too small than a segment that two parts have to open.
                at = at if collected and left <= part_bytes else min(entry_end, at + max(1, room))
                parts.append(ArchivePart(partition, part_start, at))
                part_start, collected = at, 0.0
                if at == entry_end:
                    break
        if part_start < stop:
            parts.append(ArchivePart(partition, part_start, stop))
    return tuple(part for part in parts if part.start < part.end)


def beginnings(
    states: Sequence[ManifestState], done: Mapping[int, int], parts: Sequence[ArchivePart]
) -> Iterator[ArchivePart]:
    """Where partitions begin that neither ``done`` nor ``parts`` know, as parts of nothing.

    Without them, it would be unknown whether records that such a partition gets later existed when it was archived.
    """
    known = {*done, *(part.partition for part in parts)}
    for partition, state in enumerate(states):
        if partition not in known:
            yield ArchivePart(partition, state.log_start_offset, state.log_start_offset)
