"""Triggers of a stream."""

from __future__ import annotations

from typing import Any

from pyspark.sql.streaming.datasource import ReadAllAvailable

from pyspark_firn.streaming import FirnStreamReader


def trigger(reader: FirnStreamReader, start: dict[str, Any]) -> dict[str, Any]:
    return reader.latestOffset(start, ReadAllAvailable())
