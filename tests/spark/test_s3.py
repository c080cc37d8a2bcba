"""The same reads from S3, with the address, credentials and endpoint that the broker takes."""

from __future__ import annotations

import asyncio
from pathlib import Path

from app.records.builder import build_batch
from app.units import Offset
from pyspark_firn.batch import plan
from pyspark_firn.options import parse_read_options
from pyspark_firn.tasks import read_split
from tests.objectstore.conftest import aws_credentials, moto_endpoint, opened_s3
from tests.spark.conftest import rows_of
from tests.support.buckets import BucketBuilder

__all__ = ["aws_credentials", "moto_endpoint"]


async def test_a_bucket_in_s3_reads_as_a_directory_does(
    tmp_path: Path, aws_credentials: None, moto_endpoint: str
) -> None:
    async with opened_s3(moto_endpoint) as store:
        bucket = await BucketBuilder.open(tmp_path, store=store)
        topic_id = await bucket.create_topic("t")
        for first in (0, 40):
            made = [
                build_batch([(1, b"k", b"%d" % n, ()) for n in range(start, start + 10)], base_offset=Offset(start))
                for start in range(first, first + 40, 10)
            ]
            await bucket.add_segment(topic_id, 0, made, chunk_bytes=300, compression="zstd")
        location = store.location
        url = f"s3://{location.bucket}/{location.prefix.rstrip('/')}?endpoint={location.endpoint}"
        given = {"store": url, "subscribe": "t", "columns": "offset,value", "startingOffsets": '{"t": {"0": 15}}'}

        def read() -> list[tuple[int, bytes]]:
            options = parse_read_options(given, streaming=False)
            batches = [batch for split in plan(options) for batch in read_split(options, options.columns, split)]
            return [(row["offset"], row["value"]) for row in rows_of(batches)]

        assert await asyncio.to_thread(read) == [(n, b"%d" % n) for n in range(15, 80)]
