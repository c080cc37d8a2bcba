"""``firn group``: look at consumer and share groups, put them to other offsets, remove them."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from app.cli.consume import EARLIEST_WORDS, LATEST_WORDS
from app.cli.output import count_text, print_json, print_table, say
from app.cli.session import BOOTSTRAP_DEFAULT, Bootstrap, Json, connected, parse_moment, run_async
from app.core.errors import ConfigError, ErrorCode, RequestRejected

if TYPE_CHECKING:
    from app.client.cluster import ClusterClient
    from app.client.groups import Committed, GroupMember, GroupView, ShareProgress
    from app.core.units import TopicPartition

app = typer.Typer(help="List, describe, reset and delete groups.", no_args_is_help=True, rich_markup_mode=None)

Group = Annotated[str, typer.Argument(metavar="GROUP", help="The group's id.")]


@app.command("ls", hidden=True)
@app.command("list")
def list_groups(bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, as_json: Json = False) -> None:
    """List groups of every type with their state."""

    async def work() -> None:
        from app.client.groups import GroupClient

        async with connected(bootstrap) as cluster:
            groups = await GroupClient(cluster).list_groups()
        if as_json:
            print_json(
                [
                    {
                        "group": group.group_id,
                        "type": group.group_type,
                        "protocol_type": group.protocol_type,
                        "state": group.state,
                        "coordinator": group.coordinator,
                    }
                    for group in groups
                ]
            )
        elif not groups:
            say("There are no groups.")
        else:
            print_table(
                ("GROUP", "TYPE", "STATE", ">COORDINATOR"),
                [(group.group_id, group.group_type, group.state, str(group.coordinator)) for group in groups],
            )

    run_async(work)


@app.command()
def describe(group: Group, bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, as_json: Json = False) -> None:
    """Show a group's members, committed offsets and lag."""

    async def work() -> None:
        from app.client.cluster import LATEST
        from app.client.groups import SHARE_TYPE, GroupClient

        async with connected(bootstrap) as cluster:
            client = GroupClient(cluster)
            view = await client.describe(group)
            readers: dict[TopicPartition, list[GroupMember]] = {}
            for member in view.members:
                for partition in member.partitions:
                    readers.setdefault(partition, []).append(member)
            if view.group_type == SHARE_TYPE:
                progress: Mapping[TopicPartition, Committed | ShareProgress] = await client.share_progress(group)
            else:
                progress = await client.committed(group)
            ends = await _offsets(cluster, {*progress, *readers}, LATEST)
        rows = [
            _Row(
                partition,
                progress[partition].offset if partition in progress else None,
                ends.get(partition),
                _lag(progress.get(partition), ends.get(partition)),
                readers.get(partition, []),
            )
            for partition in sorted({*progress, *readers})
        ]
        if as_json:
            print_json(_description(view, rows))
        else:
            _show(view, rows)

    run_async(work)


@app.command()
def reset(
    group: Group,
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", "-t", metavar="TOPIC[:PARTITION,…]", help="Topic or partitions to reset; may be repeated."
        ),
    ] = None,
    all_topics: Annotated[
        bool, typer.Option("--all-topics", help="Reset all topics for which the group has offsets.")
    ] = False,
    to: Annotated[
        str | None,
        typer.Option(
            "--to", metavar="WHERE", help="earliest, latest, an offset, or a time such as 2013-07-01 or -15min."
        ),
    ] = None,
    shift_by: Annotated[
        int | None,
        typer.Option("--shift-by", metavar="N", help="Move forward by N offsets; backward if negative."),
    ] = None,
    execute: Annotated[
        bool, typer.Option("--execute", help="Apply the change; without this option it is only shown.")
    ] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: Json = False,
) -> None:
    """Reset the offsets of a group without members. Only shows the change, unless --execute is given."""
    if (to is None) == (shift_by is None):
        raise ConfigError("Give the position to reset to: either --to WHERE or --shift-by N.")
    if bool(topics) == all_topics:
        raise ConfigError("Give the topics to reset: either --topic TOPIC, once or several times, or --all-topics.")

    async def work() -> None:
        from app.client.groups import GroupClient

        async with connected(bootstrap) as cluster:
            client = GroupClient(cluster)
            is_share = await client.is_share(group)
            progress = await (client.share_progress(group) if is_share else client.committed(group))
            before = {partition: each.offset for partition, each in progress.items()}
            chosen = set(before) if all_topics else await _chosen(cluster, topics or ())
            if not chosen:
                raise ConfigError(f"Group {group} has no offsets; name a topic with --topic.")
            wanted = await _wanted(cluster, chosen, before, to, shift_by)
            if execute:
                try:
                    await (client.alter_share_progress if is_share else client.commit)(group, wanted)
                except RequestRejected as error:
                    if error.code not in (ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.NON_EMPTY_GROUP):
                        raise
                    raise RequestRejected(
                        ErrorCode.NON_EMPTY_GROUP, f"Group {group} has members: stop them before you reset the group."
                    ) from error
        rows = [(partition, before.get(partition), offset) for partition, offset in sorted(wanted.items())]
        if as_json:
            print_json(
                {
                    "group": group,
                    "executed": execute,
                    "offsets": [
                        {"topic": topic, "partition": index, "offset_before": was, "offset": offset}
                        for (topic, index), was, offset in rows
                    ],
                }
            )
            return
        print_table(
            ("TOPIC", ">PARTITION", ">OFFSET", ">NEW OFFSET"),
            [
                (topic, str(index), "–" if was is None else count_text(was), count_text(offset))
                for (topic, index), was, offset in rows
            ],
        )
        say(f"Group {group} is reset." if execute else "Nothing has changed yet: add --execute to apply the reset.")

    run_async(work)


@app.command("rm", hidden=True)
@app.command()
def delete(
    group: Group,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: Json = False,
) -> int:
    """Delete a group without members, and its committed offsets."""
    if not yes:
        if not sys.stdin.isatty():
            raise ConfigError(f"Deleting {group} deletes its committed offsets: add --yes to confirm.")
        if not typer.confirm(f"Delete group {group} and its committed offsets?", err=True):
            return 1

    async def work() -> None:
        from app.client.groups import GroupClient

        async with connected(bootstrap) as cluster:
            try:
                await GroupClient(cluster).delete(group)
            except RequestRejected as error:
                match error.code:
                    case ErrorCode.GROUP_ID_NOT_FOUND:
                        raise RequestRejected(error.code, f"There is no group {group}.") from error
                    case ErrorCode.NON_EMPTY_GROUP:
                        raise RequestRejected(
                            error.code, f"Group {group} has members: stop them before you delete the group."
                        ) from error
                    case _:
                        raise
        if as_json:
            print_json({"group": group, "deleted": True})
        else:
            say(f"Deleted group {group}.")

    run_async(work)
    return 0


# --- offsets --------------------------------------------------------------------------------------------------------


async def _offsets(
    cluster: ClusterClient, partitions: Iterable[TopicPartition], timestamp: int
) -> dict[TopicPartition, int]:
    """Offsets by time or special timestamp, of the partitions that there are."""
    await cluster.refresh(None)
    there = {partition: timestamp for partition in partitions if cluster.view.leader_of(partition) is not None}
    return {partition: listed.offset for partition, listed in (await cluster.list_offsets(there)).items()}


async def _chosen(cluster: ClusterClient, texts: Iterable[str]) -> set[TopicPartition]:
    """The partitions that ``TOPIC`` or ``TOPIC:0,3`` name. Raises: ConfigError, RequestRejected for a topic that is not there."""
    from app.core.units import PartitionIndex, TopicPartition

    chosen: set[TopicPartition] = set()
    for text in texts:
        name, colon, numbers = text.partition(":")
        count = len((await cluster.topic(name)).partitions)
        if not colon:
            chosen.update(TopicPartition(name, PartitionIndex(index)) for index in range(count))
            continue
        for number in numbers.split(","):
            if not number.isascii() or not number.isdecimal() or int(number) >= count:
                raise ConfigError(f"--topic {text!r}: {number!r} is no partition of {name}, which has {count}.")
            chosen.add(TopicPartition(name, PartitionIndex(int(number))))
    return chosen


async def _wanted(
    cluster: ClusterClient,
    chosen: Iterable[TopicPartition],
    before: Mapping[TopicPartition, int],
    to: str | None,
    shift_by: int | None,
) -> dict[TopicPartition, int]:
    """The new offset of each partition, within the offsets of its log. Raises: ConfigError, RequestRejected, BrokerUnavailable."""
    from app.client.cluster import EARLIEST, LATEST
    from app.client.offset_targets import targets

    starts = await _offsets(cluster, chosen, EARLIEST)
    ends = await _offsets(cluster, chosen, LATEST)
    if shift_by is not None:
        lacking = next((partition for partition in chosen if partition not in before), None)
        if lacking is not None:
            raise ConfigError(f"{lacking} has no committed offset to shift from; use --to.")
        aims = {partition: max(0, before[partition] + shift_by) for partition in ends}
    elif to in EARLIEST_WORDS:
        aims = starts
    elif to in LATEST_WORDS:
        aims = ends
    elif to is not None and to.isascii() and to.isdecimal():
        aims = dict.fromkeys(ends, int(to))
    else:
        assert to is not None
        aims = await _offsets(cluster, chosen, parse_moment(to, "--to", int(time.time() * 1000)))
    return targets(aims, starts, ends)


# --- the tables -----------------------------------------------------------------------------------------------------


class _Row(NamedTuple):
    """One partition of a group."""

    partition: TopicPartition
    offset: int | None
    """The next offset that the group reads. Of a share group, all records below it are acknowledged. None if it has not begun."""
    end_offset: int | None
    lag: int | None
    readers: list[GroupMember]


def _lag(progress: Committed | ShareProgress | None, end_offset: int | None) -> int | None:
    """Records that the group has still to read, or a share group to acknowledge; None if that is not known."""
    from app.client.groups import ShareProgress

    if isinstance(progress, ShareProgress) and progress.lag is not None:
        return progress.lag
    return None if progress is None or end_offset is None else max(0, end_offset - progress.offset)


def _description(view: GroupView, rows: Sequence[_Row]) -> dict[str, Any]:
    is_share = view.group_type == "share"
    return {
        "group": view.group_id,
        "type": view.group_type,
        "state": view.state,
        "assignor": view.assignor,
        "members": [
            {
                "member_id": member.member_id,
                "instance_id": member.instance_id,
                "client_id": member.client_id,
                "host": member.host,
                "partitions_count": len(member.partitions),
            }
            for member in view.members
        ],
        "offsets": [
            {
                "topic": row.partition.topic,
                "partition": row.partition.partition,
                "offset": row.offset,
                "end_offset": row.end_offset,
                "lag": row.lag,
            }
            | (
                {"member_ids": [member.member_id for member in row.readers]}
                if is_share
                else {"member_id": row.readers[0].member_id if row.readers else None}
            )
            for row in rows
        ],
    }


def _show(view: GroupView, rows: Sequence[_Row]) -> None:
    def number(value: int | None) -> str:
        return "–" if value is None else count_text(value)

    print_table(
        ("TOPIC", ">PARTITION", ">OFFSET", ">END", ">LAG", "MEMBER", "HOST"),
        [
            (
                row.partition.topic,
                str(row.partition.partition),
                number(row.offset),
                number(row.end_offset),
                number(row.lag),
                ", ".join(member.member_id for member in row.readers) or "–",
                ", ".join(dict.fromkeys(member.host for member in row.readers)) or "–",
            )
            for row in rows
        ],
        title=f"Group {view.group_id} ({view.group_type}, {view.state})",
    )
    idle = sum(not member.partitions for member in view.members)
    lag = sum(row.lag or 0 for row in rows)
    sys.stdout.write(
        f"\n{count_text(len(view.members), 'member')}"
        f"{f', {count_text(idle)} without a partition' if idle else ''}; {count_text(lag, 'record')} behind.\n"
    )
