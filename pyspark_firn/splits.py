"""The input of a task. Pickled into tasks, hence small and plain: numbers, keys, no manifest."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from pyspark.sql.datasource import InputPartition


class Piece(NamedTuple):
    """A run of chunks of one segment object."""

    object_key: str
    object_bytes: int
    footer_position: int
    base_offset: int
    end_offset: int
    """Of these chunks where planning knew them, else of the segment."""
    chunk_count: int
    """Of the segment."""
    chunk_start: int
    chunk_end: int
    knows_offsets: bool
    """Whether the offsets are those of these chunks, so that the offsets alone identify the records."""

    @property
    def offsets_about(self) -> int:
        """How many offsets these chunks hold; their share of the segment's if only those are known. The shares of all pieces of a
        segment add up to its offsets."""
        offsets = self.end_offset - self.base_offset
        if self.knows_offsets:
            return offsets
        return offsets * self.chunk_end // self.chunk_count - offsets * self.chunk_start // self.chunk_count


class StoredSplit(InputPartition):
    """Chunk runs of one partition, in order, of which the records in [offset_start, offset_end) are wanted."""

    def __init__(
        self,
        *,
        topic: str,
        topic_id: bytes,
        partition: int,
        offset_start: int,
        offset_end: int,
        pieces: tuple[Piece, ...],
        raw_bytes: int,
    ) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.offset_start = offset_start
        self.offset_end = offset_end
        self.pieces = pieces
        self.raw_bytes = raw_bytes
        """About how many bytes of record batches that is."""

    def __repr__(self) -> str:
        return f"{self.topic}-{self.partition}[{self.offset_start}, {self.offset_end}) in {len(self.pieces)} pieces"


class TailSplit(InputPartition):
    """Offsets [offset_start, offset_end) of one partition, to be fetched from its leader."""

    def __init__(self, *, topic: str, topic_id: bytes, partition: int, offset_start: int, offset_end: int) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partition = partition
        self.offset_start = offset_start
        self.offset_end = offset_end

    def __repr__(self) -> str:
        return f"{self.topic}-{self.partition}[{self.offset_start}, {self.offset_end}) from its leader"


Split: TypeAlias = StoredSplit | TailSplit
