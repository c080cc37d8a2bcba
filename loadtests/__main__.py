"""``make bench``: Firn against Apache Kafka, against bare limits and against its targets, in turns within one run.

Where rates are compared, the system under test runs on core 0 and the load on core 1. Every figure is the median of the
rounds of this run; ratios are between medians of the same run. A peer that is not there is a line in the report, not a
failure. See README.md beside this file.

    python -m loadtests [--quick] [--only produce,fetch,cold,together,upload,start,memory] [--directory DIR] [--json FILE]
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from loadtests import targets, workloads
from loadtests.bare_limits import page_cache_write
from loadtests.firn_peer import firn_running
from loadtests.kafka_peer import PeerMissing, kafka_running
from loadtests.measuring import SERVER_CORE, LoadFailed, Peer
from loadtests.workloads import FULL, QUICK, TIER_AT_ONCE, Effort, Results

GROUPS = ("start", "memory", "together", "upload", "produce", "fetch", "cold")
COMPARED = {"produce", "fetch", "cold"}


def machine() -> dict[str, Any]:
    """The class of machine: what a reader needs to compare figures with those of another."""
    model = next(
        (
            line.partition(":")[2].strip()
            for line in Path("/proc/cpuinfo").read_text().splitlines()
            if "model name" in line
        ),
        "unknown",
    )
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "processor": model,
        "cores": os.cpu_count(),
        "memory_gb": round(memory / 1e9),
        "kernel": os.uname().release,
        "load_at_start": os.getloadavg()[0],
    }


def compare(groups: set[str], base: Path, effort: Effort) -> Results:
    """What runs on Firn and Kafka in turns, both started once."""
    results: Results = {}
    with ExitStack() as stack:
        firn = stack.enter_context(firn_running(base / "firn", cores=str(SERVER_CORE), settings=TIER_AT_ONCE))
        peers: dict[str, Peer] = {"Firn": firn}
        directories = {"Firn": base / "firn" / "data", "Kafka": base / "kafka" / "logs"}
        try:
            peers["Kafka"] = stack.enter_context(kafka_running(base / "kafka", core=SERVER_CORE, tiered=True))
        except PeerMissing as missing:
            print(f"Apache Kafka is left out: {missing}", flush=True)
        started = {name: peer.start_s for name, peer in peers.items()}
        results["start to first connection"] = started
        print(
            "start to first connection  " + ", ".join(f"{name} {seconds:.2f} s" for name, seconds in started.items()),
            flush=True,
        )
        if "produce" in groups:
            results |= workloads.produce(peers, effort)
        if "fetch" in groups:
            results |= workloads.hot_fetch(peers, base, effort)
        if "cold" in groups:
            results |= workloads.cold_fetch(peers, directories, effort)
        results |= workloads.loaded_memory(peers)
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds, a smaller start-up")
    parser.add_argument("--only", default=",".join(GROUPS), help="which groups, separated by commas")
    parser.add_argument("--directory", type=Path, help="where the systems keep their data (a temporary folder)")
    parser.add_argument("--json", type=Path, help="write every figure to this file")
    arguments = parser.parse_args()
    groups = set(arguments.only.split(","))
    if unknown := groups - set(GROUPS):
        parser.error(f"no group is called {', '.join(sorted(unknown))}; there are {', '.join(GROUPS)}")
    effort = QUICK if arguments.quick else FULL
    base = arguments.directory or Path(tempfile.mkdtemp(prefix="firn-bench-"))
    base.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    where = machine()
    results: Results = {"machine": where}
    print(", ".join(f"{name} {value}" for name, value in where.items()), flush=True)
    work: dict[str, Callable[[], Results]] = {
        "start": lambda: workloads.start_up(base, effort),
        "memory": lambda: workloads.idle_memory(base),
        "together": lambda: workloads.beside_cold_replay(base, effort),
        "upload": lambda: workloads.upload_while_producing(base, effort),
    }
    try:
        new, warm = page_cache_write(base, 256 << 20)
        results["page-cache write"] = {"new_mb_per_s": new, "warm_mb_per_s": warm}
        print(f"page-cache write           {new:,.0f} MB/s on new pages, {warm:,.0f} MB/s on warm ones", flush=True)
        for group, run in work.items():
            if group in groups:
                results |= run()
        if groups & COMPARED:
            results |= compare(groups, base, effort)
    except LoadFailed as failure:
        raise SystemExit(str(failure)) from None
    finally:
        if arguments.directory is None:
            shutil.rmtree(base, ignore_errors=True)
    print(f"\n{targets.report(results)}\n\n{time.monotonic() - began:.0f} s in all", flush=True)
    if arguments.json:
        arguments.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
