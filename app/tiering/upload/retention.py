"""Decides which segments expire, and checks which segments must exist. Pure.

Kafka's rules (KIP-405): ``retention.*`` applies to the whole log, and ``local.retention.*`` to its part on the local disk. -1
means no limit. -2 of a local setting means the value of the whole log. Segments expire from the oldest on; a segment that stays
protects all later ones.

The age of a segment counts from its greatest record timestamp or from the arrival of its newest record, whichever is later.
Kafka uses only the timestamp, which it recomputes from the records. Firn appends by header, so a header must not be able to
make a segment older than it is (docs/adr/0014-record-timestamps.md).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from app.core.units import Offset, TimestampMs


class Span(NamedTuple):
    """A segment of either tier, with the fields that retention needs."""

    base_offset: Offset
    end_offset: Offset
    raw_bytes: int
    newest_ms: TimestampMs
    """Its greatest record timestamp or the arrival of its newest record, whichever is later; -1 if neither is known."""


def expired_end(
    spans: Sequence[Span],
    total_bytes: int,
    *,
    retention_ms: int,
    retention_bytes: int,
    now_ms: TimestampMs,
    aged_end: int | None = None,
) -> Offset | None:
    """End of the last of the leading ``spans`` that expire by age or size; None if all stay.

    Args:
        spans: candidates, contiguous, oldest first.
        total_bytes: size of the log to which the limit applies, including ``spans``.
        aged_end: only spans that end at or below it may expire by age; None for no limit.
    """
    end: Offset | None = None
    left = total_bytes
    for span in spans:
        too_old = (
            retention_ms >= 0
            and span.newest_ms >= 0
            and now_ms - span.newest_ms > retention_ms
            and (aged_end is None or span.end_offset <= aged_end)
        )
        too_much = retention_bytes >= 0 and left - span.raw_bytes >= retention_bytes
        if not too_old and not too_much:
            break
        left -= span.raw_bytes
        end = span.end_offset
    return end


def coverage_faults(
    *,
    log_start: Offset,
    local_start: Offset,
    log_end: Offset,
    tiered_end: Offset,
    remote: Sequence[tuple[Offset, Offset]],
) -> list[str]:
    """Every gap and overlap (INV-4), in words. A correct partition has none.

    Args:
        local_start: the first offset that can be read from the local disk.
        remote: [base, end) of the readable remote segments, by base offset.
    """
    faults = []
    if log_end < tiered_end:
        faults.append(f"the log ends at {log_end}, below the tiered end {tiered_end}")
    at = log_start
    before: tuple[Offset, Offset] | None = None
    for base, end in remote:
        if before is not None and base < before[1]:
            faults.append(f"remote segments [{before[0]}, {before[1]}) and [{base}, {end}) overlap")
        before = base, end
        if end <= log_start:
            continue
        if base > at and at < local_start:
            faults.append(f"no segment covers [{at}, {min(base, local_start)})")
        at = max(at, end)
    if at < local_start:
        faults.append(f"no segment covers [{at}, {local_start})")
    return faults
