"""The plain reader that the fast one is held against: record by record, no kernel, no plan, nothing read ahead."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from app.core.units import TopicId
from app.objectstore.api import ObjectStore
from app.records.batch import LOG_APPEND_TIME, iter_headers
from app.records.record import iter_records
from app.tiering.store.discovery import read_footer
from app.tiering.store.store_work import unfold_chunk
from tests.support.discovery import longest_chains

Row = dict[str, Any]


async def reference_rows(
    store: ObjectStore,
    topic: str,
    topic_id: TopicId,
    partition: int,
    *,
    read_committed: bool = True,
    start: int = 0,
    end: int = 1 << 62,
) -> list[Row]:
    """Every record of a partition that its segment objects hold, found by LIST and footers alone."""
    keys = [info.key for info in await store.list_objects("data/") if f"/{topic_id}/{partition}/" in info.key]
    by_base = {(await read_footer(store, key)).base_offset: key for key in keys}
    rows: list[Row] = []
    for footer in longest_chains([await read_footer(store, key) for key in keys]):
        key = by_base[footer.base_offset]
        for chunk in footer.chunks:
            stored = await store.get_range(key, chunk.position, chunk.position + chunk.stored_bytes)
            raw = memoryview(unfold_chunk(stored, chunk, key))
            for position, header in iter_headers(raw):
                skipped = header.is_control or (
                    read_committed
                    and header.is_transactional
                    and any(
                        header.producer_id == one.producer_id
                        and one.first_offset <= header.base_offset <= one.last_offset
                        for one in footer.aborted
                    )
                )
                if skipped:
                    continue
                for record in iter_records(raw[position : position + header.size_bytes]):
                    if not start <= record.offset < end:
                        continue
                    rows.append(
                        {
                            "key": record.key,
                            "value": record.value,
                            "topic": topic,
                            "partition": partition,
                            "offset": record.offset,
                            "timestamp": record.timestamp,
                            "timestampType": 1 if header.attributes & LOG_APPEND_TIME else 0,
                            "headers": [{"key": name, "value": value} for name, value in record.headers] or None,
                            "leader_epoch": header.leader_epoch,
                            "producer_id": header.producer_id,
                        }
                    )
    return rows


def projected(rows: Sequence[Row], columns: Sequence[str]) -> list[Row]:
    return [{name: row[name] for name in columns} for row in rows]
