"""``firn topic``: make, look at, change and remove topics. Tests: ``tests/cli/test_commands.py``."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator, Awaitable, Iterable
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.moving import move_topic
from app.cli.output import bytes_text, count_text, print_json, print_table, say
from app.cli.session import BOOTSTRAP_DEFAULT, Bootstrap, Internal, Json, connected, parse_assignments, run_async
from app.core.errors import ConfigError, ErrorCode, RequestRejected, clause

if TYPE_CHECKING:
    from app.wire.private import PartitionTierStatus

app = typer.Typer(help="Create, list, describe, alter and delete topics.", no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")]


@app.command()
def create(
    topic: Name,
    partitions: Annotated[
        int | None, typer.Option("--partitions", "-p", min=1, help="Number of partitions; default: the broker's.")
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option("--replication-factor", min=1, help="Replicas of each partition; default: the broker's."),
    ] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set", "-s", "--config", "-c", metavar="NAME=VALUE", help="A setting of the topic; may be repeated."
        ),
    ] = None,
    if_not_exists: Annotated[bool, typer.Option("--if-not-exists", help="Do not fail if the topic exists.")] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: Json = False,
) -> None:
    """Create a topic."""
    configs = parse_assignments(assignments or (), "--set")

    async def work() -> None:
        from app.client.admin import AdminClient

        async with connected(bootstrap) as cluster, _explaining(configs):
            admin = AdminClient(cluster)
            created = True
            try:
                made = await admin.create_topic(
                    topic,
                    partitions_count=partitions or -1,
                    replication_factor=replication_factor or -1,
                    configs=dict(configs),
                )
                partitions_count, replicas = made.partitions_count, made.replication_factor
            except RequestRejected as error:
                if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS or not if_not_exists:
                    raise
                created = False
                view = await admin.describe_topic(topic)
                partitions_count = len(view.partitions)
                replicas = len(view.partitions[0].replicas)
            if as_json:
                print_json(
                    {
                        "topic": topic,
                        "created": created,
                        "partitions_count": partitions_count,
                        "replication_factor": replicas,
                    }
                )
            else:
                did = "Created topic" if created else "There is a topic"
                say(f"{did} {topic} with {count_text(partitions_count, 'partition')}.")

    run_async(work)


@app.command("ls", hidden=True)
@app.command("list")
def list_topics(internal: Internal = False, bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, as_json: Json = False) -> None:
    """List topics with their records and bytes by tier."""

    async def work() -> None:
        from app.client.admin import AdminClient

        async with connected(bootstrap) as cluster:
            view = await AdminClient(cluster).describe_cluster()
            statuses, store = await _tiers(cluster, ())
            rows = [
                _totals(name, [status for status in statuses or () if status.topic == name], len(topic.partitions))
                for name, topic in sorted(view.topics.items())
                if internal or not topic.internal
            ]
        if as_json:
            print_json(rows)
        elif not rows:
            say("There are no topics yet. `firn topic create NAME` makes one.")
        else:
            print_table(
                ("TOPIC", ">PARTITIONS", ">RECORDS", ">LOCAL", ">OBJECT STORE"),
                [
                    (
                        row["topic"],
                        count_text(row["partitions_count"]),
                        "–" if statuses is None else count_text(row["records"]),
                        "–" if statuses is None else bytes_text(row["local_bytes"]),
                        "–" if statuses is None else bytes_text(row["remote_bytes"]),
                    )
                    for row in rows
                ],
            )
        if store:
            say(store)

    run_async(work)


@app.command()
def describe(
    topic: Name,
    all_settings: Annotated[
        bool, typer.Option("--all", "-a", help="Also show settings with their default value.")
    ] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    store: Annotated[
        str,
        typer.Option(
            "--store",
            "-s",
            metavar="URL",
            help="Read this object store instead of asking brokers; works without a running broker.",
        ),
    ] = "",
    as_json: Json = False,
) -> None:
    """Show a topic's partitions, its records and bytes by tier, and its settings."""
    if store:
        from app.cli.stored_topic import describe_stored

        describe_stored(store, topic, as_json=as_json)
        return

    async def work() -> None:
        from app.client.admin import AdminClient
        from app.wire.config_resources import ConfigResourceType
        from app.wire.private import OFFLINE

        async with connected(bootstrap) as cluster:
            admin = AdminClient(cluster)
            view = await admin.describe_topic(topic)
            found, store = await _tiers(cluster, (topic,))
            every = found or []
            statuses = [status for status in every if status.state != OFFLINE]
            configs = await admin.describe_configs(ConfigResourceType.TOPIC, topic)
        offline = {status.partition: status.last_error for status in every if status.state == OFFLINE}
        shown = [config for config in configs if all_settings or not config.is_default]
        totals = _totals(topic, statuses, len(view.partitions))
        by_index = {status.partition: status for status in statuses}
        if as_json:
            totals["topic_id"] = str(view.topic_id)
            totals["partitions"] = [
                {
                    "partition": partition.index,
                    "leader": partition.leader,
                    "leader_epoch": partition.leader_epoch,
                    "replicas": list(partition.replicas),
                    "in_sync_replicas": list(partition.in_sync_replicas),
                    **({"offline": offline[partition.index]} if partition.index in offline else {}),
                    **_status_json(by_index.get(partition.index)),
                }
                for partition in view.partitions
            ]
            totals["configs"] = {
                config.name: {"value": config.value, "source": config.source, "default": config.is_default}
                for config in shown
            }
            print_json(totals)
            return
        print_table(
            (
                ">PARTITION",
                ">LEADER",
                "REPLICAS",
                "IN SYNC",
                ">START",
                ">END",
                ">RECORDS",
                ">LOCAL",
                ">OBJECT STORE",
                ">NOT TIERED YET",
            ),
            [
                (
                    str(partition.index),
                    "none" if partition.leader is None else str(partition.leader),
                    ",".join(map(str, partition.replicas)),
                    ",".join(map(str, partition.in_sync_replicas)) or "none",
                    *_status_row(by_index.get(partition.index)),
                )
                for partition in view.partitions
            ],
            title=f"Topic {topic} ({view.topic_id})",
        )
        for index, why in sorted(offline.items()):
            sys.stdout.write(f"\n{topic}-{index} is offline: {clause(why)}.\n")
        if statuses:
            sys.stdout.write(
                f"\n{count_text(totals['records'], 'record')}: {bytes_text(totals['local_bytes'])} on local disks, "
                f"{bytes_text(totals['remote_bytes'])} in the object store in "
                f"{count_text(totals['remote_segments'], 'segment')}.\n"
            )
        if shown:
            sys.stdout.write("\n")
            print_table(
                ("SETTING", "~VALUE", "FROM"),
                [(config.name, config.value or "", _plain_source(config.source)) for config in shown],
            )
        else:
            sys.stdout.write("\nEvery setting is at its default; --all shows them.\n")
        if store:
            say(store)

    run_async(work)


@app.command()
def alter(
    topic: Name,
    assignments: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            "-s",
            "--config",
            "-c",
            "--add-config",
            metavar="NAME=VALUE",
            help="Set a setting; may be repeated.",
        ),
    ] = None,
    unset: Annotated[
        list[str] | None,
        typer.Option(
            "--unset", "-u", "--delete-config", metavar="NAME", help="Reset a setting to its default; may be repeated."
        ),
    ] = None,
    validate_only: Annotated[
        bool, typer.Option("--validate-only", help="Only check whether the broker would accept the change.")
    ] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: Json = False,
) -> None:
    """Change settings of a topic; other settings do not change."""
    to_set = parse_assignments(assignments or (), "--set")
    if not to_set and not unset:
        raise ConfigError("There is nothing to change: add --set name=value or --unset name.")

    async def work() -> None:
        from app.client.admin import AdminClient
        from app.wire.config_resources import ConfigOperation, ConfigResourceType

        changes: list[tuple[str, ConfigOperation, str | None]] = [
            (name, ConfigOperation.SET, value) for name, value in to_set.items()
        ]
        changes += [(name, ConfigOperation.DELETE, None) for name in unset or ()]
        async with connected(bootstrap) as cluster, _explaining([name for name, _, _ in changes]):
            admin = AdminClient(cluster)
            await admin.alter_configs(ConfigResourceType.TOPIC, topic, changes, validate_only=validate_only)
        if as_json:
            print_json({"topic": topic, "set": to_set, "unset": unset or [], "applied": not validate_only})
        else:
            did = "would be accepted" if validate_only else "are set" if len(changes) > 1 else "is set"
            say(f"{', '.join(name for name, _, _ in changes)} of topic {topic} {did}.")

    run_async(work)


@app.command("rm", hidden=True)
@app.command()
def delete(
    topic: Name,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    if_exists: Annotated[bool, typer.Option("--if-exists", help="Do not fail if the topic does not exist.")] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: Json = False,
) -> int:
    """Delete a topic and all its records, also from the object store."""

    async def exists() -> bool:
        from app.client.admin import AdminClient

        async with connected(bootstrap) as cluster:
            return await _unless_unknown(AdminClient(cluster).describe_topic(topic), allowed=if_exists)

    async def delete_it() -> bool:
        from app.client.admin import AdminClient

        async with connected(bootstrap) as cluster:
            return await _unless_unknown(AdminClient(cluster).delete_topic(topic), allowed=if_exists)

    if yes:
        deleted = run_async(delete_it)
    elif not run_async(exists):  # no question about a topic that does not exist
        deleted = False
    elif not sys.stdin.isatty():
        raise ConfigError(f"Deleting {topic} deletes its records for good: add --yes to confirm.")
    elif typer.confirm(f"Delete topic {topic} and all its records, also in the object store?", err=True):
        deleted = run_async(delete_it)
    else:
        return 1
    if as_json:
        print_json({"topic": topic, "deleted": deleted})
    else:
        say(f"Deleted topic {topic}." if deleted else f"There is no topic {topic}, so nothing was deleted.")
    return 0


@app.command("delete-records")
def delete_records(
    topic: Name,
    partition: Annotated[int, typer.Option("--partition", "-p", min=0, help="The partition.")],
    before: Annotated[
        str, typer.Option("--before", metavar="OFFSET", help="Delete records below this offset; `latest` deletes all.")
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: Json = False,
) -> int:
    """Delete the records of a partition below an offset, also from the object store.

    A consumer that stands below the offset goes on by its own reset policy. To get one group past some records without deleting
    them, use `firn group reset`.
    """
    if before != "latest" and not before.isdecimal():
        raise ConfigError(f"--before {before} is neither an offset nor `latest`.")
    up_to = "all records" if before == "latest" else f"the records below offset {before}"
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError(f"This deletes {up_to} of {topic}-{partition} for good: add --yes to confirm.")
        if not typer.confirm(f"Delete {up_to} of {topic}-{partition}, also in the object store?", err=True):
            return 1

    async def work() -> None:
        from app.client.admin import AdminClient
        from app.core.units import Offset, PartitionIndex, TopicPartition

        offset = Offset(-1 if before == "latest" else int(before))
        async with connected(bootstrap) as cluster:
            start = await AdminClient(cluster).delete_records(TopicPartition(topic, PartitionIndex(partition)), offset)
        if as_json:
            print_json({"topic": topic, "partition": partition, "log_start_offset": start})
        else:
            say(f"{topic}-{partition} now begins at offset {start}.")

    run_async(work)
    return 0


@app.command("add-partitions")
def add_partitions(
    topic: Name,
    total: Annotated[int, typer.Option("--total", "-t", min=1, help="New number of partitions of the topic.")],
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: Json = False,
) -> None:
    """Increase a topic's number of partitions. New records of a key may then go to another partition."""

    async def work() -> None:
        from app.client.admin import AdminClient

        async with connected(bootstrap) as cluster:
            await AdminClient(cluster).create_partitions(topic, total)
        if as_json:
            print_json({"topic": topic, "partitions_count": total})
        else:
            say(f"Topic {topic} has {count_text(total, 'partition')} now.")

    run_async(work)


app.command("move")(move_topic)


async def _unless_unknown(work: Awaitable[object], *, allowed: bool) -> bool:
    """Wait for ``work``; False if the topic does not exist and that is ``allowed``. Raises: RequestRejected."""
    try:
        await work
    except RequestRejected as error:
        if error.code is not ErrorCode.UNKNOWN_TOPIC_OR_PARTITION or not allowed:
            raise
        return False
    return True


@asynccontextmanager
async def _explaining(names: Iterable[str]) -> AsyncIterator[None]:
    """Adds the nearest known name to a refusal of settings of which one has none."""
    try:
        yield
    except RequestRejected as error:
        from difflib import get_close_matches

        from app.configs.topic_definitions import TOPIC_DEFINITIONS

        unknown = [name for name in names if name not in TOPIC_DEFINITIONS]
        if error.code is not ErrorCode.INVALID_CONFIG or not unknown:
            raise
        known = list(TOPIC_DEFINITIONS)
        nearest = get_close_matches(unknown[0].removeprefix("log."), known, n=1, cutoff=0.7)
        hint = f" Did you mean {nearest[0]}?" if nearest else " `firn topic describe TOPIC --all` lists them."
        raise RequestRejected(error.code, f"{str(error).rstrip('.')}.{hint}") from None


# --- the tables -----------------------------------------------------------------------------------------------------


async def _tiers(cluster: Any, topics: tuple[str, ...]) -> tuple[list[PartitionTierStatus] | None, str]:
    """Tiers as Firn's brokers tell them, None if these brokers are not Firn's; and a sentence if the object store is away."""
    from app.client.admin import AdminClient
    from app.core.errors import BrokerUnavailable

    try:
        answers = await AdminClient(cluster).tier_answers(topics)
    except BrokerUnavailable:
        # Another Kafka broker closes the connection on a request it does not know.
        return None, ""
    statuses = [status for answer in answers.values() for status in answer.partitions]
    statuses.sort(key=lambda status: (status.topic, status.partition))
    return statuses, next((answer.store for answer in answers.values() if answer.store), "")


def _totals(topic: str, statuses: list[PartitionTierStatus], partitions_count: int) -> dict[str, Any]:
    return {
        "topic": topic,
        "partitions_count": partitions_count,
        "records": sum(status.high_watermark - status.log_start_offset for status in statuses),
        "local_bytes": sum(status.local_bytes for status in statuses),
        "local_segments": sum(status.local_segments for status in statuses),
        "remote_bytes": sum(status.remote_bytes for status in statuses),
        "remote_raw_bytes": sum(status.remote_raw_bytes for status in statuses),
        "remote_segments": sum(status.remote_segments for status in statuses),
        "tier_lag_bytes": sum(status.lag_bytes for status in statuses),
    }


def _status_json(status: PartitionTierStatus | None) -> dict[str, Any]:
    if status is None:
        return {}
    return {
        "log_start_offset": status.log_start_offset,
        "local_start_offset": status.local_start_offset,
        "tiered_end_offset": status.tiered_end_offset,
        "high_watermark": status.high_watermark,
        "log_end_offset": status.log_end_offset,
        "records": status.high_watermark - status.log_start_offset,
        "local_bytes": status.local_bytes,
        "local_segments": status.local_segments,
        "remote_bytes": status.remote_bytes,
        "remote_raw_bytes": status.remote_raw_bytes,
        "remote_segments": status.remote_segments,
        "tier_lag_bytes": status.lag_bytes,
        "tiered": status.tiered,
    }


def _status_row(status: PartitionTierStatus | None) -> tuple[str, ...]:
    if status is None:
        return ("–",) * 6
    return (
        count_text(status.log_start_offset),
        count_text(status.high_watermark),
        count_text(status.high_watermark - status.log_start_offset),
        bytes_text(status.local_bytes),
        bytes_text(status.remote_bytes),
        bytes_text(status.lag_bytes) if status.tiered else "never is",
    )


def _plain_source(source: str) -> str:
    return {
        "DYNAMIC_TOPIC_CONFIG": "this topic",
        "DYNAMIC_BROKER_CONFIG": "the broker",
        "DYNAMIC_DEFAULT_BROKER_CONFIG": "all brokers",
        "STATIC_BROKER_CONFIG": "the broker's start",
        "DEFAULT_CONFIG": "default",
    }.get(source, source)
