"""Spark's read of a topic's history: from the bucket, beside its limits and beside Spark's own Kafka source (``spark_read``), and
planning, pruning and archiving (``spark_plan``)."""

from __future__ import annotations

import importlib.util
import json
import shutil
import statistics
import subprocess
import sys
from typing import Any

from loadtests.lab import Lab
from loadtests.measuring import LoadFailed
from loadtests.results import Case
from loadtests.system import ROOT

RECORD_BYTES = (100, 1000)
SYSTEMS = {
    "firn": "Firn",
    "firn_by_default": "Firn, Spark's defaults",
    "kafka": "Kafka",
    "prebuilt": "prebuilt batches",
    "kernel": "kernel alone",
}
MIB_FULL = {100: 256, 1000: 1024}
"""A topic's. A replay is of years: what a query pays once is a twentieth of reading 512 MiB of 1 KB records still."""
MIB_QUICK = 64
WARM_UP_S_FULL, WARM_UP_S_QUICK = 10, 1
WARM_UP_QUERIES_FULL, WARM_UP_QUERIES_QUICK = 40, 1
ARCHIVE_MIB_FULL = 256
SEGMENTS_FULL, SEGMENTS_QUICK = 100_000, 2_000


def replay(lab: Lab) -> list[Case]:
    """All columns of one topic into Spark's `noop` sink, `local[2]`, nothing pinned. `prebuilt batches` is what Spark takes at most
    from a Python source, `kernel alone` is the decoding without Spark. CPU is that of all processes, Spark's and Kafka's broker. A
    query is timed with its planning; `one record` is one that reads a single record: what each pays once, however much it reads.
    Python's record batches reach Spark by Unix sockets, the one setting that docs/spark.md recommends, but for `Spark's defaults`.
    Then one day of a topic of very many segments is planned and read, and a topic archived by two processes."""
    if importlib.util.find_spec("pyspark") is None:
        lab.note("Spark is left out: pyspark is not installed (pip install 'firn-broker[spark]').")
        return []
    if shutil.which("java") is None:
        lab.note("Spark is left out: no Java here.")
        return []
    return [*(_read(lab, size) for size in RECORD_BYTES), *_plan(lab)]


def _read(lab: Lab, size: int) -> Case:
    found = _run(
        "spark_read",
        {
            "record-bytes": size,
            "mib": MIB_QUICK if lab.quick else MIB_FULL[size],
            "warm-up-queries": WARM_UP_QUERIES_QUICK if lab.quick else WARM_UP_QUERIES_FULL,
            "warm-up-s": WARM_UP_S_QUICK if lab.quick else WARM_UP_S_FULL,
            "rounds": lab.effort.variant_rounds,
        },
    )
    rates, cpu = found["million_records_per_s"], found["cpu_s_per_million_records"]
    if "kafka" not in rates:
        lab.note("Spark's own Kafka source is left out: its jars or Kafka's are not here.")
    reports: dict[str, dict[str, Any]] = {
        system: {
            "records_per_s": rates[name] * 1e6,
            "mb_per_s": rates[name] * size,
            "server_cpu_s_per_gb": cpu[name] * 1000 / size,
        }
        for name, system in SYSTEMS.items()
        if name in rates
    }
    for name, seconds in found["one_record_s"].items():
        reports[SYSTEMS[name]]["one_record_s"] = seconds
    memory = found["task_memory_mib"]
    reports["Firn"] |= {
        "task_mb": memory["own"] * 1.048576,
        "task_with_libraries_mb": memory["with_libraries"] * 1.048576,
    }
    case = Case(f"Spark, records of {size} bytes", reports, {"record_bytes": size})
    print(f"{case.name}: " + ", ".join(f"{n} {r['records_per_s']:,.0f} records/s" for n, r in case.systems.items()))
    return case


def _plan(lab: Lab) -> list[Case]:
    segments = SEGMENTS_QUICK if lab.quick else SEGMENTS_FULL
    found = _run("spark_plan", {"segments": segments, "archive-mib": MIB_QUICK if lab.quick else ARCHIVE_MIB_FULL})
    archive = statistics.median(found["archive_mb_per_s"])
    print(
        f"a day of {segments:,} segments: planned in {found['plan_s']} s, {found['bytes_read_of_range']} of its bytes read"
    )
    print(f"archive: {archive:.0f} MB/s")
    day = {
        "plan_s": found["plan_s"],
        "plan_cpu_s": found["plan_cpu_s"],
        "bytes_read_of_range": found["bytes_read_of_range"],
    }
    return [
        Case("Spark, one day of many segments", {"Firn": day}, {"segments": segments}),
        Case("Spark, archive", {"Firn": {"mb_per_s": archive}}),
    ]


def _run(module: str, options: dict[str, int]) -> dict[str, Any]:
    """What a measuring program prints last. Raises: LoadFailed."""
    command = [sys.executable, "-m", f"loadtests.{module}"]
    command += [word for name, value in options.items() for word in (f"--{name}", str(value))]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    if done.returncode:
        raise LoadFailed(f"{module}: {done.stderr.strip()[-300:]}")
    last = done.stdout.strip().rpartition("\n")[2]
    try:
        found: dict[str, Any] = json.loads(last)
    except ValueError:
        raise LoadFailed(f"{module} printed no result last, but {last[:300]!r}; {done.stderr.strip()[-300:]}") from None
    return found
