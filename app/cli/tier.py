"""``firn tier``: where the bytes are. Tests: ``tests/broker/test_offline.py``, ``tests/cli/test_commands.py``."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from app.cli.output import bytes_text, count_text, duration_text, print_json, print_table, say, time_text
from app.cli.session import BOOTSTRAP_DEFAULT, Bootstrap, DataDir, Internal, Json, connected, run_async, serving_broker
from app.core.errors import ErrorCode, RequestRejected, clause
from app.core.units import PartitionIndex, TopicPartition

app = typer.Typer(
    help="Show which data is on local disks and which is in the object store.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command()
def status(
    topics: Annotated[list[str] | None, typer.Argument(metavar="[TOPIC]...", help="Topics; default: all.")] = None,
    internal: Internal = False,
    replicas: Annotated[
        bool, typer.Option("--replicas", help="Also what each follower has, and how far it knows the tier.")
    ] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Show the bytes of every partition by tier, and the tiering lag.

    --data-dir asks the broker of that directory alone, at its local address: it works before clients can reach the address that
    the broker advertises.
    """
    running = None if data_dir is None else serving_broker(data_dir, None)

    async def work() -> None:
        from app.client.admin import AdminClient
        from app.wire.private import OFFLINE

        async with connected(bootstrap if running is None else running.local or running.kafka) as cluster:
            admin = AdminClient(cluster)
            if running is None:
                answers = {
                    f"Broker {node}": answer
                    for node, answer in (await admin.tier_answers(topics or (), replicas=replicas)).items()
                }
            else:
                here = await admin.tier_answer_of(await cluster.any_broker(), topics or (), replicas=replicas)
                answers = {f"The broker of {data_dir}": here}
            statuses = [entry for answer in answers.values() for entry in answer.partitions]
            statuses.sort(key=lambda entry: (entry.topic, entry.partition, entry.role != "leader"))
            if not topics and not internal:
                there = (await admin.describe_cluster()).topics
                hidden = {name for name, topic in there.items() if topic.internal}
                statuses = [entry for entry in statuses if entry.topic not in hidden]
        for who, answer in answers.items():
            if answer.drain:
                say(f"{who}: {answer.drain}.")
            for topic in answer.back:
                say(
                    f"{who} took the place of another data directory; {topic.topic}"
                    f" ({count_text(topic.partitions, 'partition')}) was back up to offset {count_text(topic.offsets)} in sum."
                )
        if as_json:
            print_json([{field: getattr(entry, field) for field in entry.__struct_fields__} for entry in statuses])
            return
        if not statuses:
            say("There are no topics yet. `firn topic create NAME` makes one.")
            return
        print_table(
            (
                "PARTITION",
                ">START",
                ">LOCAL FROM",
                ">TIERED TO",
                ">END",
                ">LOCAL",
                ">OBJECT STORE",
                ">RAW",
                ">BEHIND",
                ">SINCE",
                "~STATE",
            ),
            [
                (
                    f"{entry.topic}-{entry.partition}",
                    count_text(entry.log_start_offset),
                    count_text(entry.local_start_offset),
                    count_text(entry.tiered_end_offset),
                    count_text(entry.log_end_offset),
                    bytes_text(entry.local_bytes),
                    bytes_text(entry.remote_bytes),
                    bytes_text(entry.remote_raw_bytes),
                    bytes_text(entry.lag_bytes),
                    duration_text(entry.lag_ms),
                    f"{entry.state}: {entry.last_error}"
                    if entry.last_error and entry.state != OFFLINE
                    else entry.state,
                )
                for entry in statuses
            ],
        )
        for entry in statuses:
            if entry.state == OFFLINE:
                sys.stdout.write(f"\n{entry.topic}-{entry.partition} is offline: {clause(entry.last_error)}.\n")
        local, remote = sum(entry.local_bytes for entry in statuses), sum(entry.remote_bytes for entry in statuses)
        sys.stdout.write(f"\n{bytes_text(local)} on local disks, {bytes_text(remote)} in the object store.\n")

    run_async(work)


@app.command()
def segments(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    partition: Annotated[
        int | None, typer.Option("--partition", "-p", min=0, help="Only this partition; default: all.")
    ] = None,
    keys: Annotated[bool, typer.Option("--keys", help="Show the key of each object (long).")] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: Json = False,
) -> None:
    """List every segment of a topic with its tier, offsets, bytes and times.

    LAG is the time from a segment's last write until it was in the object store, or until now if it still waits. The last
    write is taken to be at the newest record's time, or at the first write if that was later and is still known on the disk.
    """

    async def work() -> None:
        from app.client.admin import AdminClient

        async with connected(bootstrap) as cluster:
            admin = AdminClient(cluster)
            view = await admin.describe_topic(topic)
            count = len(view.partitions)
            if partition is not None and partition >= count:
                raise RequestRejected(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                    f"Topic {topic} has only {count_text(count, 'partition')}, so there is no partition {partition}.",
                )
            wanted = range(count) if partition is None else [partition]
            found = [
                (index, segment)
                for index in wanted
                for segment in await admin.tier_segments(TopicPartition(topic, PartitionIndex(index)))
            ]
        if as_json:
            print_json(
                [
                    {"partition": index, **{field: getattr(segment, field) for field in segment.__struct_fields__}}
                    for index, segment in found
                ]
            )
            return
        print_table(
            (
                ">PARTITION",
                "TIER",
                ">FROM",
                ">TO",
                ">OFFSETS",
                ">BYTES",
                "OLDEST RECORD",
                "NEWEST RECORD",
                ">LAG",
                "STATE",
                *(("OBJECT",) if keys else ()),
            ),
            [
                (
                    str(index),
                    segment.tier,
                    count_text(segment.base_offset),
                    count_text(segment.end_offset),
                    count_text(segment.end_offset - segment.base_offset),
                    bytes_text(segment.size_bytes),
                    time_text(segment.min_timestamp),
                    time_text(segment.max_timestamp),
                    duration_text(segment.lag_ms),
                    segment.state,
                    *((segment.object_key,) if keys else ()),
                )
                for index, segment in found
            ],
        )

    run_async(work)


PartitionNumber = Annotated[int, typer.Option("--partition", "-p", min=0, help="Number of the partition.")]
StoreUrl = Annotated[
    str, typer.Option("--store", "-s", metavar="URL", help="Object store: file:///path or s3://bucket/prefix.")
]


@app.command()
def adopt(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    partition: PartitionNumber,
    store: StoreUrl,
    as_json: Json = False,
) -> None:
    """Add segments to a manifest that has lost their entries.

    Use this for a partition that is offline because the manifest does not name segment objects above its tiered end. Segments that
    follow the tiered end without a gap are added from their footers. The broker leads the partition at its next retry. If a
    broker leads the partition, stop the broker first.
    """
    from app.cli.stored_manifest import changing
    from app.tiering.repair.unnamed import adopt as take_in

    entries, left = run_async(lambda: changing(store, topic, partition, take_in))
    if as_json:
        print_json({"adopted": [[entry.base_offset, entry.end_offset] for entry in entries], "unnamed": len(left)})
        return
    for entry in entries:
        say(f"Offsets [{entry.base_offset}, {entry.end_offset}) are in the manifest of {topic}-{partition} again.")
    if not entries:
        say(f"No segment follows the tiered end of {topic}-{partition}.")
    if left:
        say(
            f"{count_text(len(left), 'segment')} above the tiered end cannot be adopted, because offsets before them are missing."
            " Restore the manifest, or give up these records with `firn tier accept-loss`."
        )


@app.command(name="accept-loss")
def accept_loss(
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    partition: PartitionNumber,
    store: StoreUrl,
    as_json: Json = False,
) -> None:
    """Give up the records of segments that no manifest names, so that a broker can lead the partition again from the tiered end.

    The objects of these segments are deleted, and their offsets are given to other records. Try `firn tier adopt` first: it
    loses nothing. If a broker leads the partition, stop the broker first.
    """
    from app.cli.stored_manifest import changing
    from app.tiering.repair.unnamed import accept_loss as give_up

    found, _ = run_async(lambda: changing(store, topic, partition, give_up))
    if as_json:
        print_json({"given_up": [[one.base_offset, one.end_offset, one.info.key] for one in found]})
        return
    for one in found:
        say(f"{one.info.key} is given up: offsets from {one.base_offset} on.")
    if not found:
        say(f"No unnamed segment is above the tiered end of {topic}-{partition}; nothing has changed.")
