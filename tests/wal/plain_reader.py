"""A small reader of objects of the write-ahead log, written from docs/formats.md alone: it shares no code with Firn."""

from __future__ import annotations

import struct
from typing import Any

HEAD = (
    "magic", "version", "flags", "head", "kind", "window", "broker", "epoch", "number", "nonce", "data", "sections",
    "batches", "states", "r1", "created", "sealer", "r2",
)  # fmt: skip
BATCH = (
    "base", "size", "leader_epoch", "attributes", "delta", "time", "producer", "producer_epoch", "sequence", "records",
    "marker", "coordinator",
)  # fmt: skip


def crc32c(data: bytes) -> int:
    """CRC-32C, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


class Columns:
    """Columns at multiples of eight bytes."""

    def __init__(self, data: bytes, at: int = 0) -> None:
        self.data, self.at = data, at

    def raw(self, size: int) -> bytes:
        found = self.data[self.at : self.at + size]
        assert len(found) == size
        self.at += size + -size % 8
        return found

    def take(self, kind: str, count: int) -> list[int]:
        return list(struct.unpack(f"<{count}{kind}", self.raw(struct.calcsize("<" + kind) * count)))


def read(data: bytes) -> dict[str, Any]:
    """Everything that an object says."""
    footer_bytes, footer_crc, magic = struct.unpack("<II8s", data[-16:])
    assert magic == b"FIRNWALT"
    footer = data[-16 - footer_bytes : -16]
    assert crc32c(footer + data[-16:-12]) == footer_crc
    head = dict(zip(HEAD, struct.unpack("<8sHHIHHiqq16sqIIIIqiI", footer[:96]), strict=True))
    assert head["magic"] == b"FIRNWALF"
    assert (head["version"], head["flags"], head["head"], head["r1"], head["r2"]) == (1, 0, 96, 0, 0)
    n, b, s = head["sections"], head["batches"], head["states"]
    columns = Columns(footer, 96)
    topics = columns.raw(16 * n)
    partitions, positions, sizes = columns.take("i", n), columns.take("q", n), columns.take("i", n)
    crcs, counts, state_numbers = columns.take("I", n), columns.take("i", n), columns.take("q", n)
    state_sizes = columns.take("I", n)
    assert sum(size > 0 for size in state_sizes) == s
    of_batches = [columns.take(kind, b) for kind in "qiihiqqhiibi"]
    batches = [dict(zip(BATCH, row, strict=True)) for row in zip(*of_batches, strict=True)]
    states: list[dict[str, Any] | None] = []
    for size in state_sizes:
        if not size:
            states.append(None)
            continue
        end = columns.at + size
        offset, epochs, snapshot_bytes, older, _ = struct.unpack("<qIIII", columns.raw(24))
        lineage = list(zip(columns.take("i", epochs), columns.take("q", epochs), strict=True))
        older_rows = list(zip(*(columns.take(kind, older) for kind in "qiiqqq"), strict=True))
        states.append(
            {"offset": offset, "epochs": lineage, "older": older_rows, "snapshot": columns.raw(snapshot_bytes)}
        )
        assert columns.at == end
    assert columns.at == footer_bytes
    sections = []
    first = 0
    for index in range(n):
        records = data[positions[index] : positions[index] + sizes[index]]
        assert crc32c(records) == crcs[index]
        state = states[index]
        own_state = state is not None and state["offset"] == batches[first]["base"]
        assert own_state == (state_numbers[index] == head["number"])
        sections.append(
            {
                "topic": topics[16 * index : 16 * index + 16],
                "partition": partitions[index],
                "records": records,
                "batches": batches[first : first + counts[index]],
                "state_number": state_numbers[index],
                "state": state,
            }
        )
        first += counts[index]
    return {**head, "sections": sections}
