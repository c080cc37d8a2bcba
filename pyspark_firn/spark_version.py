"""Firn's data source needs an API of Spark that older versions have not: they are told so before an import fails. Imports nothing
of Firn."""

from __future__ import annotations

from typing import Final

import pyspark

SPARK_MIN: Final = (4, 2)
"""The first whose Python streams have admission control and ``Trigger.AvailableNow``."""


class SparkTooOld(ImportError):
    """This version of Spark cannot run Firn's data source."""


def require_spark(version: str = pyspark.__version__) -> None:
    """Raises: SparkTooOld."""
    major, minor = version.split(".")[:2]
    if (int(major), int(minor)) < SPARK_MIN:
        needed = ".".join(map(str, SPARK_MIN))
        raise SparkTooOld(
            f"This is pyspark {version}, and Firn needs {needed} or newer: pip install 'pyspark>={needed}', on every machine that"
            " runs tasks, too."
        )
