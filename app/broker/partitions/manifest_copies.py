"""Copies of segment manifests in the data directory, so that a start need not read them from the bucket.

A copy is as old as its last write: later entries are in the bucket, and a LIST shows them. After a stop in order there are no
later entries. ``manifest-ends`` records this: for each manifest the number of its next entry. It is valid only until another
broker may have written. So the file names the start that wrote it, and only the next start trusts it: if the cluster log has no
later registration of this node id. The file therefore need not be removed durably.

``manifest-ends``: CRC-32C (uint32) of the rest, then a msgpack array of ``ManifestEnds``.

A partition without records has no files. So the directory does not show whether it never had any, or has lost them. Two files say
that it never had any: after a stop in order ``manifest-ends`` lists such partitions. After any other stop ``led-by`` names the last
start here that led all of its partitions; if it is the last start of the node id, no other broker had them since.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final
from uuid import UUID

import msgspec
from crc32c import crc32c

from app.core.faults import Faults
from app.core.log_events import Event
from app.core.seams import BlockingPool
from app.core.turns import Portion
from app.core.units import LeaderEpoch, PartitionIndex, TopicIdPartition
from app.machine.files import FileSystem, read_file, replace_file, unlink_quietly
from app.metadata.log import layout
from app.metadata.manifest.manifest import SegmentManifest
from app.tiering.upload.remote_log_manager import manifest_cache_name

ENDS_FILE: Final = "manifest-ends"
LED_BY_FILE: Final = "led-by"
READ_AT_ONCE: Final = 32
"""Copies that one piece of work in the pool reads."""


class ManifestEnd(msgspec.Struct, array_like=True, frozen=True):
    """The end of a manifest when its leader stopped."""

    topic_id: UUID
    partition: PartitionIndex
    leader_epoch: LeaderEpoch
    """The leader epoch at that time."""
    version: int
    """``SegmentManifest.version``: the number of its next entry."""


class Empty(msgspec.Struct, array_like=True, frozen=True):
    """A partition that has never had a record, so that it has no files."""

    topic_id: UUID
    partition: PartitionIndex
    leader_epoch: LeaderEpoch


class ManifestEnds(msgspec.Struct, array_like=True, frozen=True):
    """The ends of a broker's manifests at a stop in order."""

    version: int
    incarnation: UUID
    """The incarnation that stopped."""
    ends: list[ManifestEnd]
    empty: list[Empty] = []
    """Partitions that this start has led, and that have never had a record."""


_ENCODER: Final = msgspec.msgpack.Encoder(uuid_format="bytes")
_DECODER: Final = msgspec.msgpack.Decoder(ManifestEnds)


class ManifestCopies:
    """The copies in one data directory. Belongs to the event loop; files are read and written on the pool."""

    def __init__(
        self,
        directory: str,
        *,
        fs: FileSystem,
        pool: BlockingPool,
        log_line: Callable[[str], None],
        faults: Faults | None = None,
    ) -> None:
        """``directory``: Firn's own folder in the data directory."""
        self._own_directory = directory
        self._ends_path = f"{directory}/{ENDS_FILE}"
        self._led_by_path = f"{directory}/{LED_BY_FILE}"
        self._directory = f"{directory}/manifests"
        self._fs = fs
        self._pool = pool
        self._log_line = log_line
        self._faults = faults if faults is not None else Faults(log_line)
        self._changed: dict[TopicIdPartition, SegmentManifest] = {}
        self._gone: set[TopicIdPartition] = set()
        """Partitions that were deleted, and may have copies."""
        self._swept = False
        """Whether this start has removed the copies of partitions that were deleted before."""

    # --- reading ----------------------------------------------------------------------------------------------------

    async def take_ends(self) -> ManifestEnds | None:
        """The ends that the last stop has left. Returned only once; None unless the stop was in order."""

        def take() -> bytes:
            data = read_file(self._fs, self._ends_path)
            unlink_quietly(self._fs, self._ends_path)
            return data

        try:
            data = await self._pool.run(take)
            if int.from_bytes(data[:4], "big") != crc32c(data[4:]):
                return None
            ends = _DECODER.decode(data[4:])
        except (OSError, msgspec.MsgspecError):
            return None  # it only saves requests
        return ends if ends.version == 1 else None

    async def led_by(self) -> bytes:
        """The incarnation of the last start in this data directory that led all of its partitions; empty if there was none."""

        def read() -> bytes:
            try:
                return read_file(self._fs, self._led_by_path)
            except FileNotFoundError:
                return b""

        try:
            return await self._pool.run(read)
        except OSError as error:
            self._log_line(Event.LOG_DIRECTORY_FAILED.line(f"cannot read {LED_BY_FILE} in the data directory: {error}"))
            return b""

    async def note_led(self, incarnation: UUID) -> None:
        """This start leads all of its partitions. A failure is logged; leader epochs of empty partitions rise at the next start."""

        def write() -> None:
            self._fs.make_dirs(self._own_directory)
            replace_file(self._fs, self._led_by_path, incarnation.bytes, durable=False)

        try:
            await self._pool.run(write)
        except OSError as error:
            self._log_line(
                Event.LOG_DIRECTORY_FAILED.line(f"cannot write {LED_BY_FILE} to the data directory: {error}")
            )

    async def partitions(self) -> list[TopicIdPartition]:
        """The partitions whose manifests have copies."""
        try:
            names = await self._pool.run(lambda: self._fs.list_dir(self._directory))
        except OSError:
            return []
        found = map(_partition_of, names)
        return [partition for partition in found if partition is not None]

    async def read(self, partitions: Sequence[TopicIdPartition]) -> list[bytes | None]:
        """The copies of some manifests; None for a missing copy. They are not checked, and may be old."""
        return await self._pool.run(lambda: [self._read(one) for one in partitions])

    def _read(self, partition: TopicIdPartition) -> bytes | None:
        try:
            return read_file(self._fs, self._path(partition))
        except OSError:
            return None

    # --- writing ----------------------------------------------------------------------------------------------------

    def note_change(self, manifest: SegmentManifest) -> None:
        """Note a changed manifest for the next ``write``."""
        self._changed[TopicIdPartition(manifest.topic_id, manifest.partition)] = manifest

    def forget(self, partition: TopicIdPartition) -> None:
        """Drop a manifest, because its topic was deleted. The next ``write`` removes its copy."""
        self._changed.pop(partition, None)
        self._gone.add(partition)

    async def write(self, live: Mapping[UUID, int]) -> None:
        """Write outdated copies, and remove copies of deleted partitions. The first call also removes all files that are not of a
        ``live`` partition (topic ids with partition counts). A failure is logged, and the next start then reads the manifest from
        the bucket."""
        if not self._changed and not self._gone:
            return
        changed, self._changed = self._changed, {}
        gone, self._gone = self._gone, set()
        contents: list[tuple[str, bytes]] = []
        portion = Portion()
        for key, manifest in changed.items():
            contents.append((self._path(key), manifest.to_cache()))
            await portion.rest_if_spent()
        sweep = not self._swept
        live = dict(live) if sweep else {}

        def write() -> None:
            self._fs.make_dirs(self._directory)
            for path, data in contents:
                replace_file(self._fs, path, data, durable=False)
            if not sweep and not gone:
                return
            for name in self._fs.list_dir(self._directory):
                partition = _partition_of(name)
                if partition in gone or (sweep and not _is_live(partition, live)):
                    unlink_quietly(self._fs, f"{self._directory}/{name}")

        try:
            await self._pool.run(write)
            self._swept = True
        except OSError as error:
            self._gone |= gone
            sentence = f"cannot write copies of manifests to the data directory: {error}"
            self._faults.met("copying", "manifests", sentence)

    async def leave_ends(
        self,
        incarnation: UUID,
        led: Mapping[TopicIdPartition, tuple[SegmentManifest, LeaderEpoch]],
        empty: Mapping[TopicIdPartition, LeaderEpoch],
    ) -> None:
        """Write the ends of the manifests that this start has led, and the partitions that have never had a record. Nothing here
        writes them afterwards. Call after ``write``."""
        ends = [
            ManifestEnd(*key, epoch, manifest.version)
            for key, (manifest, epoch) in led.items()
            if manifest.end_is_known
        ]
        without_records = [Empty(*key, epoch) for key, epoch in empty.items()]
        body = _ENCODER.encode(ManifestEnds(1, incarnation, ends, without_records))
        data = crc32c(body).to_bytes(4, "big") + body

        def write() -> None:
            self._fs.make_dirs(self._own_directory)
            replace_file(self._fs, self._ends_path, data, durable=True)

        try:
            await self._pool.run(write)
        except OSError as error:
            self._log_line(
                Event.LOG_DIRECTORY_FAILED.line(
                    f"cannot write the ends of the manifests to the data directory: {error}"
                )
            )

    def _path(self, partition: TopicIdPartition) -> str:
        return f"{self._directory}/{manifest_cache_name(*partition)}"


def _partition_of(name: str) -> TopicIdPartition | None:
    """The partition whose copy a file is; None if the file is no copy."""
    return layout.parse_manifest_prefix(name.replace("_", "/"))


def _is_live(partition: TopicIdPartition | None, live: Mapping[UUID, int]) -> bool:
    return partition is not None and partition.partition < live.get(partition.topic_id, 0)
