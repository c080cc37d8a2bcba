"""A topic in an S3 bucket."""

from __future__ import annotations

from pyspark_firn.batch import plan
from pyspark_firn.options import parse_read_options
from pyspark_firn.tasks import read_split
from tests.spark.conftest import rows_of

NOW_MS = 1_700_000_000_000


def read(url: str, **given: str) -> list[tuple[int, bytes]]:
    options = parse_read_options({"store": url, "subscribe": "t", "columns": "offset,value", **given}, streaming=False)
    batches = [batch for split in plan(options) for batch in read_split(options, options.columns, split)]
    return [(row["offset"], row["value"]) for row in rows_of(batches)]
