"""From exec to the first answers: empty, with many partitions after a clean stop and after a kill, and over slow S3."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from pathlib import Path
from typing import Any

from loadtests import many_segments
from loadtests.lab import Lab
from loadtests.measuring import Report, median
from loadtests.results import Case
from loadtests.start_up import S3_ENVIRONMENT, first_answers, s3_url, slow_s3

S3_DELAY_MS = 50


def run(lab: Lab) -> list[Case]:
    """Metadata, one Produce to and one hot Fetch of every partition."""
    cases = []

    def case(name: str, reports: list[Report], **parameters: Any) -> None:
        found = median(reports)
        cases.append(Case(f"start, {name}", {"Firn": found}, parameters))
        print(
            f"start to first answers     {name:<34} Metadata {found['metadata_s']:.2f} s, Produce "
            f"{found['produce_s']:.2f} s, Fetch {found['fetch_s']:.2f} s, broker {found['broker_cpu_s']:.2f} s CPU, "
            f"then {found['broker_mb']:.0f} MB and {found['store_process_mb']:.0f} MB in the store process",
            flush=True,
        )

    effort = lab.effort
    reports = []
    for _ in range(effort.starts):
        with tempfile.TemporaryDirectory(dir=lab.base) as empty:
            reports.append(first_answers(Path(empty), [("first", 1)]))
    case("empty", reports, partitions=1, segments=0)
    many = lab.base / "many"
    many_segments.build(many, effort.partitions, effort.segments)
    os.sync()
    topics = many_segments.topic_names(effort.partitions)
    size = f"{effort.partitions:,} partitions"
    first_answers(many, topics)
    case(f"{size}, stopped in order", [first_answers(many, topics) for _ in range(effort.starts)])
    killed = []
    for _ in range(effort.starts):
        first_answers(many, topics, stop=signal.SIGKILL)
        killed.append(first_answers(many, topics))
    case(f"{size}, after kill -9", killed)
    with slow_s3(many / "bucket", S3_DELAY_MS) as endpoint:
        far = s3_url(endpoint)
        case(
            f"{size}, S3 at {S3_DELAY_MS} ms a request",
            [first_answers(many, topics, store=far, environment=S3_ENVIRONMENT) for _ in range(effort.starts)],
        )
    shutil.rmtree(many)
    return cases
