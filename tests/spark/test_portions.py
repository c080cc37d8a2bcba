"""A chunk is handed out in portions: how large they are changes nothing of what is in them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from app.core.units import Offset
from app.records.builder import build_batch
from app.records.compression import Codec
from pyspark_firn import decoding
from pyspark_firn.columns import KAFKA_COLUMNS
from pyspark_firn.decoding import RecordDecoder

BATCHES, RECORDS = 5, 7


def portions(codec: Codec) -> list[pa.RecordBatch]:
    raw = b"".join(
        build_batch(
            [(1_700_000_000_000 + n, b"key", b"value-%d" % (base + n), ()) for n in range(RECORDS)],
            base_offset=Offset(base),
            codec=codec,
        )
        for base in range(0, BATCHES * RECORDS, RECORDS)
    )
    decoder = RecordDecoder(KAFKA_COLUMNS, "topic", 0)
    return list(decoder.decode(raw, "here", batch_count=BATCHES, first_offset=0, end_offset=BATCHES * RECORDS))


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_small_portions_have_what_one_large_one_has(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    [whole] = portions(codec)
    assert whole.num_rows == BATCHES * RECORDS
    monkeypatch.setattr(decoding, "PORTION_BYTES", 1)
    small = portions(codec)
    assert [portion.num_rows for portion in small] == [RECORDS] * BATCHES
    assert pa.Table.from_batches(small).combine_chunks().to_batches() == [whole]
