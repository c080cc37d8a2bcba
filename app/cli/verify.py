"""``firn verify``: prove that a bucket holds all data that its manifests name, down to every checksum.

Tests: ``tests/cli/test_commands.py``.
"""

from __future__ import annotations

import asyncio
import os
import random
import sys
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.output import bytes_text, count_text, print_json, progress
from app.cli.session import Json, missing_folder, run_async
from app.core.errors import ConfigError
from app.core.units import TopicIdPartition

if TYPE_CHECKING:
    from app.tiering.repair.verify import Finding, Progress


def verify(
    store: Annotated[
        str | None,
        typer.Option("--store", "-s", metavar="URL", help="Object store: file:///path or s3://bucket/prefix."),
    ] = None,
    topics: Annotated[
        list[str] | None, typer.Option("--topic", "-t", metavar="TOPIC", help="Only this topic; may be repeated.")
    ] = None,
    records: Annotated[
        bool,
        typer.Option("--records", help="Also decode every record, to find batches that no consumer can read. Slower."),
    ] = False,
    config: Annotated[
        Path | None, typer.Option("--config", "-c", envvar="FIRN_CONFIG", help="The broker's settings file.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Read everything in an object store and check it.

    Reads manifests and segments, checks every checksum, and checks that offsets have no gap and no overlap. Works with or without a
    running broker, and changes nothing. Exit code 1 if records are missing or damaged, or a manifest is missing.
    """
    from app.objectstore.location import DirectoryLocation, parse_store_url
    from app.settings import load

    settings = load(config_path=config, environment=os.environ, flags={"--store": store})
    url = settings.broker.store_url
    location = parse_store_url(url)
    if isinstance(location, DirectoryLocation) and not location.path.is_dir():
        raise missing_folder(location.path, settings.origins.get("firn.store.url"))
    outcome = run_async(lambda: _verify(url, topics or (), records=records, quiet=as_json))
    damage = [finding for finding in outcome.findings if finding.is_damage]
    if as_json:
        print_json(outcome.as_json(url))
    else:
        outcome.print(url)
    return 1 if damage else 0


class _Outcome:
    def __init__(self, findings: list[Finding], at: Progress, names: dict[uuid.UUID, str]) -> None:
        self.findings = findings
        self._at = at
        self._names = names

    def as_json(self, url: str) -> dict[str, Any]:
        return {
            "store": url,
            "sound": not any(finding.is_damage for finding in self.findings),
            "partitions": self._at.partitions_done,
            "segments": self._at.segments_done,
            "records": self._at.records_done,
            "bytes": self._at.bytes_done,
            "findings": [
                {
                    "kind": finding.kind.value,
                    "damage": finding.is_damage,
                    "topic": None if finding.partition is None else self._names.get(finding.partition.topic_id),
                    "topic_id": None if finding.partition is None else str(finding.partition.topic_id),
                    "partition": None if finding.partition is None else finding.partition.partition,
                    "object_key": finding.object_key,
                    "message": finding.message,
                }
                for finding in self.findings
            ],
        }

    def print(self, url: str) -> None:
        at = self._at
        for finding in self.findings:
            where = "" if finding.partition is None else f"{self._partition(finding.partition)}: "
            grade = "DAMAGE" if finding.is_damage else "waste "
            sys.stdout.write(
                f"{grade}  {where}{finding.kind.value}: {finding.message.removesuffix('.')} ({finding.object_key})\n"
            )
        damaged = sum(finding.is_damage for finding in self.findings)
        read = (
            f"{count_text(at.segments_done, 'segment')} of {count_text(at.partitions_done, 'partition')} in {url}: "
            f"{count_text(at.records_done, 'record')}, {bytes_text(at.bytes_done)}"
        )
        if damaged:
            sys.stdout.write(f"{read}. Damage in {count_text(damaged, 'place')}.\n")
        elif not at.segments_done:
            sys.stdout.write(f"There are no segments in {url} yet. All other objects are sound.\n")
        else:
            sys.stdout.write(f"{read}. Every checksum is right, with no gap and no overlap.\n")
        wasted = len(self.findings) - damaged
        if wasted:
            sys.stdout.write(f"{count_text(wasted, 'object')} only take space; the broker deletes them later.\n")

    def _partition(self, partition: TopicIdPartition) -> str:
        return f"{self._names.get(partition.topic_id, str(partition.topic_id))}-{partition.partition}"


async def _verify(url: str, topics: list[str] | tuple[str, ...], *, records: bool, quiet: bool) -> _Outcome:
    from app.machine.runtime import SystemClock, ThreadPool
    from app.metadata.view.follower import MetadataFollower
    from app.objectstore.opening import open_store
    from app.tiering.repair.verify import Progress
    from app.tiering.repair.verify import verify as walk

    pool, clock = ThreadPool(), SystemClock()
    store = await open_store(url, pool=pool, rng=random.Random())
    reader = MetadataFollower(store, clock)
    try:
        image = await reader.cluster()
        names = {topic_id: topic.name for topic_id, topic in image.topics_by_id.items()}
        if not image.cluster_id:
            raise ConfigError(f"There is no Firn cluster in {url}: name the store that the cluster's brokers have.")
        unknown = [topic for topic in topics if topic not in names.values()]
        if unknown:
            raise ConfigError(f"There is no topic {unknown[0]} in {url}.")
        at = Progress()
        findings: list[Finding] = []
        wanted = {topic_id for topic_id, name in names.items() if name in topics}
        only = (lambda partition: partition.topic_id in wanted) if topics else None
        with progress("verify", total=None, shown=not quiet) as report:
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(_watch(at, report))
                async for finding in walk(
                    store, reader.manifest, reader.cluster, progress=at, only=only, records=records
                ):
                    findings.append(finding)
                watching.cancel()
        return _Outcome(findings, at, dict(names))
    finally:
        await store.close()
        pool.close()


async def _watch(at: Progress, report: Callable[[int, int | None, str], None]) -> None:
    """Bring the bar up to date a few times a second."""
    while True:
        note = f"{count_text(at.segments_done)} of {count_text(at.segments_total, 'segment')}"
        report(at.bytes_done, at.bytes_total or None, note)
        await asyncio.sleep(0.2)
