"""Spark's read of a topic's history: from the bucket, beside its limits and beside Spark's own Kafka source (``spark_read``)."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys

from loadtests.lab import Lab
from loadtests.measuring import LoadFailed
from loadtests.results import Case
from loadtests.system import ROOT

RECORD_BYTES = (100, 1000)
SYSTEMS = {"firn": "Firn", "kafka": "Kafka", "prebuilt": "prebuilt batches", "kernel": "kernel alone"}
MIB_FULL, MIB_QUICK = 256, 64


def replay(lab: Lab) -> list[Case]:
    """All columns of one topic into Spark's `noop` sink, `local[2]`, nothing pinned. `prebuilt batches` is what Spark takes at most
    from a Python source, `kernel alone` is the decoding without Spark."""
    if importlib.util.find_spec("pyspark") is None:
        lab.note("Spark is left out: pyspark is not installed (pip install 'firn[spark]').")
        return []
    cases = []
    for size in RECORD_BYTES:
        scale = ("--mib", str(MIB_QUICK if lab.quick else MIB_FULL), "--rounds", str(lab.effort.variant_rounds))
        command = [sys.executable, "-m", "loadtests.spark_read", "--record-bytes", str(size), *scale]
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
        if done.returncode:
            raise LoadFailed(f"spark_read: {done.stderr.strip()[-300:]}")
        found = json.loads(done.stdout.splitlines()[-1])["million_records_per_s"]
        if "kafka" not in found:
            lab.note("Spark's own Kafka source is left out: its jars or Kafka's are not here.")
        reports = {
            SYSTEMS[name]: {"records_per_s": rate * 1e6, "mb_per_s": rate * size} for name, rate in found.items()
        }
        order = [name for name in SYSTEMS.values() if name in reports]
        case = Case(f"Spark, records of {size} bytes", {name: reports[name] for name in order}, {"record_bytes": size})
        print(f"{case.name}: " + ", ".join(f"{n} {r['records_per_s']:,.0f} records/s" for n, r in case.systems.items()))
        cases.append(case)
    return cases
