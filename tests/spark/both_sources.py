"""The same reads by Firn's source and by Spark's Kafka source, in a process of its own: Java has to start with the connector.

    python -m tests.spark.both_sources STORE BOOTSTRAP CASES ANSWERS

CASES is a JSON list of (kind of read, options); ANSWERS gets a list of what each source said: rows as text, or a sentence.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from loadtests.spark_read import CONNECTOR
from tests.spark.sessions import DataFrame, PySparkException, SparkSession, session

TIMEOUT_S = 120


def own_options(store: str, bootstrap: str) -> Mapping[str, Mapping[str, str]]:
    """What each source needs besides what is compared; transactions that aborted are nobody's wish."""
    return {
        "firn": {"store": store},
        "kafka": {"kafka.bootstrap.servers": bootstrap, "kafka.isolation.level": "read_committed"},
    }


def batch(spark: SparkSession, source: str, options: Mapping[str, str]) -> DataFrame:
    return spark.read.format(source).options(**options).load()


def stream(spark: SparkSession, source: str, options: Mapping[str, str]) -> DataFrame:
    """What a stream has read when all that was there is read."""
    query = (
        spark.readStream.format(source)
        .options(**options)
        .load()
        .writeStream.format("memory")
        .queryName("read")
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(TIMEOUT_S)
    return spark.table("read")


def rows_of(frame: DataFrame) -> list[str]:
    """Schema and rows in the order of the log."""
    ordered = sorted(frame.collect(), key=lambda row: (row.topic, row.partition, row.offset))
    plain = [tuple(bytes(value) if isinstance(value, bytearray) else value for value in row) for row in ordered]
    return [str(frame.schema.json()), *map(repr, plain)]


def sentence_of(error: Exception) -> str:
    """Firn's own sentence, if there is one."""
    lines = str(error).splitlines()
    own = [line for line in lines if line.startswith(("app.core.errors.", "pyspark_firn."))]
    return own[0].partition(": ")[2] if own else lines[0]


def answer(spark: SparkSession, source: str, kind: str, options: Mapping[str, str]) -> Any:
    try:
        return rows_of({"batch": batch, "stream": stream}[kind](spark, source, options))
    except (PySparkException, AssertionError) as error:
        return sentence_of(error)
    except Exception as error:  # noqa: BLE001 - of Java's, of any class
        return sentence_of(error)


def main() -> None:
    store, bootstrap, cases, answers = sys.argv[1:]
    spark = session("local[2]", spark_jars=",".join(str(jar) for jar in sorted(CONNECTOR.glob("*.jar"))))
    own = own_options(store, bootstrap)
    found = [
        {source: answer(spark, source, kind, own[source] | options) for source in own}
        for kind, options in json.loads(Path(cases).read_text())
    ]
    spark.stop()
    Path(answers).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
