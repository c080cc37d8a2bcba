"""Moves of replicas and leaderships: ``firn topic move``, ``firn cluster drain`` and ``firn cluster rebalance`` (ADR 0029).

A command plans, prints the plan with its bytes to copy, asks, has the controller begin the moves, and watches them. The moves are
in the cluster log: they go on without the command, and are cancelled by the same command with ``--cancel``.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from app.cli.output import bytes_text, count_text, print_json, print_table, progress, say
from app.cli.session import (
    BOOTSTRAP_DEFAULT,
    Bootstrap,
    Json,
    confirmed,
    connected,
    run_async,
)
from app.core.errors import ConfigError, ConflictError, clause
from app.core.units import PartitionIndex, TopicPartition

if TYPE_CHECKING:
    from app.client.admin import AdminClient
    from app.metadata.replicas.rebalancing import Move, PlacedPartition, Seat, Stuck
    from app.wire.private import ClusterBroker, PartitionTierStatus

WATCH_S: Final = 0.5
TELL_S: Final = 10.0
"""Between two lines about the progress, where there is no terminal for a bar."""
ROWS_MAX: Final = 20
"""Moves that a plan shows one by one."""
PER_REQUEST_MAX: Final = 500
NOT_ALL: Final = 4
"""Exit code if some partitions were refused, or could not be moved."""

Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the plan and what it copies, and change nothing.")]
Cancel = Annotated[bool, typer.Option("--cancel", help="Cancel what is under way.")]
NoWait = Annotated[bool, typer.Option("--no-wait", help="Return when the moves have begun.")]


# --- commands -------------------------------------------------------------------------------------------------------


def move_topic(
    topic: Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.")],
    to: Annotated[
        str, typer.Option("--to", metavar="ID,…", help="Brokers that get the replicas; by default all of them in turn.")
    ] = "",
    partition: Annotated[
        int | None,
        typer.Option("--partition", "-p", min=0, help="Only this partition: --to are its replicas, in order."),
    ] = None,
    replication_factor: Annotated[
        int | None,
        typer.Option("--replication-factor", min=1, help="Replicas of each partition; default: as many as now."),
    ] = None,
    cancel: Cancel = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: Json = False,
) -> int:
    """Move a topic's partitions to other brokers, or give them more or fewer replicas.

    Only records that are not in the object store yet are copied. Ctrl-C leaves the move under way; --cancel cancels it.
    """
    targets = _ids(to)
    if cancel and (targets or replication_factor):
        raise ConfigError("--cancel takes the move back as a whole: leave --to and --replication-factor away.")
    if not cancel and not targets and replication_factor is None:
        raise ConfigError("Say where the partitions go: --to ID,… or --replication-factor N, or --cancel.")

    async def work() -> int:
        from app.client.admin import AdminClient
        from app.metadata.replicas.rebalancing import move

        async with connected(bootstrap) as cluster:
            admin = AdminClient(cluster)
            await admin.describe_topic(topic)
            if cancel:
                under_way = [
                    one
                    for one in await admin.list_reassignments()
                    if one.topic == topic and partition in (None, one.partition)
                ]
                return await _cancelled(admin, under_way, as_json=as_json)
            held = [one for one in await _held(admin, (topic,)) if partition in (None, one.partition)]
            if not held:
                raise ConflictError(f"Topic {topic} has no partition {partition}.")
            standing = await admin.cluster_standing()
            chosen = targets or [one.node_id for one in standing.brokers if one.state == "alive"]
            moves = [
                move(one, after)
                for one in held
                if (after := _after(one, chosen, replication_factor, in_order=partition is not None)) != one.replicas
            ]
            again = f"firn topic move {topic} --cancel"
            return await _carry_out(admin, moves, (), again, yes=yes, dry_run=dry_run, no_wait=no_wait, as_json=as_json)

    return run_async(work)


def drain_broker(
    broker: Annotated[int, typer.Argument(metavar="BROKER", min=0, help="The broker's node id.")],
    cancel: Cancel = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: Json = False,
) -> int:
    """Move every replica and leadership of a broker to others, so that it can be stopped and unregistered.

    Only records that are not in the object store yet are copied. Ctrl-C leaves the moves under way; --cancel cancels them.
    """

    async def work() -> int:
        from app.client.admin import AdminClient
        from app.metadata.replicas.rebalancing import plan_drain

        async with connected(bootstrap) as cluster:
            admin = AdminClient(cluster)
            if cancel:
                under_way = [
                    one for one, (_, leaving) in (await admin.list_reassignments()).items() if broker in leaving
                ]
                return await _cancelled(admin, under_way, as_json=as_json)
            standing = await admin.cluster_standing()
            if broker not in {one.node_id for one in standing.brokers}:
                raise ConflictError(f"Broker {broker} is not registered. `firn cluster brokers` lists those that are.")
            moves, stuck = plan_drain(await _held(admin), _seats(standing.brokers), broker)
            again = f"firn cluster drain {broker} --cancel"
            code = await _carry_out(
                admin, moves, stuck, again, yes=yes, dry_run=dry_run, no_wait=no_wait, as_json=as_json
            )
            if not as_json and not dry_run and not no_wait and code == 0:
                say(f"Broker {broker} has no replica now. Stop it, then `firn cluster unregister {broker}`.")
            return code

    return run_async(work)


def rebalance(
    cancel: Cancel = False,
    yes: Yes = False,
    dry_run: DryRun = False,
    no_wait: NoWait = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: Json = False,
) -> int:
    """Spread replicas, their load and leaderships evenly over the living brokers, with as little copied as possible.

    The load of a partition is the size of its log on the leader's disk. Ctrl-C leaves the moves under way; --cancel cancels all.
    """

    async def work() -> int:
        from app.client.admin import AdminClient
        from app.metadata.replicas.rebalancing import plan_rebalance

        async with connected(bootstrap) as cluster:
            admin = AdminClient(cluster)
            under_way = await admin.list_reassignments()
            if cancel:
                return await _cancelled(admin, under_way, as_json=as_json)
            if under_way:
                raise ConflictError(
                    f"{count_text(len(under_way), 'partition')} move already: wait until `firn cluster status` shows none, or"
                    " cancel them with `firn cluster rebalance --cancel`."
                )
            standing = await admin.cluster_standing()
            moves = plan_rebalance(await _held(admin), _seats(standing.brokers))
            again = "firn cluster rebalance --cancel"
            return await _carry_out(admin, moves, (), again, yes=yes, dry_run=dry_run, no_wait=no_wait, as_json=as_json)

    return run_async(work)


# --- planning -------------------------------------------------------------------------------------------------------


def _ids(text: str) -> list[int]:
    """Raises: ConfigError."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not all(part.isdecimal() for part in parts):
        raise ConfigError(f"--to {text} does not name brokers: write their node ids, as in 1,2,3.")
    return [int(part) for part in parts]


def _after(one: PlacedPartition, chosen: Sequence[int], factor: int | None, *, in_order: bool) -> tuple[int, ...]:
    """The replicas of a partition among the chosen brokers: those it has there stay."""
    if in_order and factor is None:
        return tuple(chosen)
    wanted = len(one.replicas) if factor is None else factor
    if wanted > len(set(chosen)):
        raise ConfigError(
            f"{one.topic}-{one.partition} gets {count_text(wanted, 'replica')}, and only"
            f" {count_text(len(set(chosen)), 'broker')} can have them: name more brokers, or a smaller --replication-factor."
        )
    stay = [each for each in one.replicas if each in chosen][:wanted]
    turn = one.partition % len(chosen)
    new = [each for each in (*chosen[turn:], *chosen[:turn]) if each not in stay]
    return (*stay, *new[: wanted - len(stay)])


async def _held(admin: AdminClient, topics: tuple[str, ...] = ()) -> list[PlacedPartition]:
    """Partitions, each with the bytes that a new replica copies. Raises: as ``AdminClient.tier_status``."""
    from app.metadata.replicas.rebalancing import PlacedPartition

    view = await admin.describe_cluster()
    known: Mapping[tuple[str, int], PartitionTierStatus] = {
        (one.topic, one.partition): one for one in await admin.tier_status(topics)
    }
    held = []
    for name, topic in view.topics.items():
        if topics and name not in topics:
            continue
        for one in topic.partitions:
            status = known.get((name, one.index))
            tail = local = 0
            if status is not None:
                local = max(0, status.local_bytes)
                tail = status.lag_bytes if status.tiered else local
            held.append(PlacedPartition(name, one.index, tuple(map(int, one.replicas)), tail, float(local)))
    return held


def _seats(brokers: Iterable[ClusterBroker]) -> list[Seat]:
    from app.metadata.replicas.rebalancing import Seat

    return [Seat(one.node_id, one.rack) for one in brokers if one.state == "alive"]


# --- carrying out ---------------------------------------------------------------------------------------------------


async def _carry_out(
    admin: AdminClient,
    moves: Sequence[Move],
    stuck: Sequence[Stuck],
    cancel: str,
    *,
    yes: bool,
    dry_run: bool,
    no_wait: bool,
    as_json: bool,
) -> int:
    """Show a plan, ask, begin and watch it. Returns: the exit code. ``cancel`` is the command that cancels it."""
    copied = sum(one.copied_bytes for one in moves)
    for one in stuck:
        say(f"{one.topic}-{one.partition} cannot be moved: {clause(one.why)}.")
    if not as_json:
        _show(moves, copied)
    begun: dict[TopicPartition, Move] = {}
    refused: dict[TopicPartition, str] = {}
    if moves and not dry_run:
        asking = f"Move {count_text(len(moves), 'partition')}, and copy {bytes_text(copied)}?"
        if not confirmed(asking, yes=yes):
            return 1
        try:
            begun, refused = await _begin(admin, moves)
            for partition, why in refused.items():
                say(f"{partition} is not moved: {why}")
            if begun and not no_wait:
                await _watch(admin, begun, shown=not as_json)
        except asyncio.CancelledError:
            # Also while the response to the request is on its way.
            say(f"\nMoves that have begun go on. `firn cluster status` shows them, `{cancel}` cancels them.")
            raise
    if as_json:
        print_json(
            {
                "moves": [one._asdict() for one in moves],
                "stuck": [one._asdict() for one in stuck],
                "copied_bytes": copied,
                "refused": [{"partition": str(partition), "why": why} for partition, why in refused.items()],
                "begun": len(begun),
                "done": bool(begun) and not no_wait,
            }
        )
    elif begun:
        say(f"{count_text(len(begun), 'partition')} {'move' if no_wait else 'moved'}.")
    return NOT_ALL if stuck or refused else 0


def _show(moves: Sequence[Move], copied: int) -> None:
    if not moves:
        say("There is nothing to move.")
        return
    print_table(
        ("PARTITION", "REPLICAS NOW", "REPLICAS THEN", ">COPIES"),
        [
            (
                f"{one.topic}-{one.partition}",
                ",".join(map(str, one.before)),
                ",".join(map(str, one.after)),
                bytes_text(one.copied_bytes) if one.copies else "nothing",
            )
            for one in moves[:ROWS_MAX]
        ],
    )
    if len(moves) > ROWS_MAX:
        sys.stdout.write(f"… and {count_text(len(moves) - ROWS_MAX)} more.\n")
    sys.stdout.write(f"{count_text(len(moves), 'partition')}, {bytes_text(copied)} to copy.\n")
    sys.stdout.flush()


async def _begin(
    admin: AdminClient, moves: Sequence[Move]
) -> tuple[dict[TopicPartition, Move], dict[TopicPartition, str]]:
    """Returns: the moves that began, and the reasons of the others. Raises: RequestRejected, BrokerUnavailable."""
    by_partition = {TopicPartition(one.topic, PartitionIndex(one.partition)): one for one in moves}
    refused: dict[TopicPartition, str] = {}
    named = list(by_partition)
    for start in range(0, len(named), PER_REQUEST_MAX):
        page = named[start : start + PER_REQUEST_MAX]
        answer = await admin.alter_reassignments({one: by_partition[one].after for one in page})
        refused |= {one: str(error) for one, error in answer.items()}
    begun = {partition: one for partition, one in by_partition.items() if partition not in refused}
    # Only the order of replicas changed: their first leads when it is elected.
    reordered = [partition for partition, one in begun.items() if not one.copies]
    for start in range(0, len(reordered), PER_REQUEST_MAX):
        await admin.elect_preferred_leaders(reordered[start : start + PER_REQUEST_MAX])
    return begun, refused


async def _watch(admin: AdminClient, begun: Mapping[TopicPartition, Move], *, shown: bool) -> None:
    """Wait until no move of these is under way. Raises: RequestRejected, BrokerUnavailable."""
    loop = asyncio.get_running_loop()
    told_s = loop.time()
    total = len(begun)
    with progress("Moving", total=total, shown=shown, counted="partitions") as show:
        while True:
            under_way = [one for one in await admin.list_reassignments() if one in begun]
            left = sum(begun[one].copied_bytes for one in under_way)
            show(total - len(under_way), total, f"{bytes_text(left)} of those that are left")
            if not under_way:
                return
            if shown and loop.time() - told_s >= TELL_S:
                told_s = loop.time()
                if not sys.stderr.isatty():
                    say(
                        f"{count_text(len(under_way), 'partition')} of {count_text(total)} still move, {bytes_text(left)}."
                    )
            await asyncio.sleep(WATCH_S)


async def _cancelled(admin: AdminClient, under_way: Iterable[TopicPartition], *, as_json: bool) -> int:
    """Cancel moves. Returns: the exit code. Raises: RequestRejected, BrokerUnavailable."""
    named = list(under_way)
    refused: dict[TopicPartition, str] = {}
    for start in range(0, len(named), PER_REQUEST_MAX):
        answer = await admin.alter_reassignments(dict.fromkeys(named[start : start + PER_REQUEST_MAX]))
        refused |= {one: str(error) for one, error in answer.items()}
    done: list[Any] = [str(one) for one in named if one not in refused]
    if as_json:
        print_json(
            {"cancelled": done, "refused": [{"partition": str(one), "why": why} for one, why in refused.items()]}
        )
    else:
        for partition, why in refused.items():
            say(f"The move of {partition} is not cancelled: {why}")
        say(f"Cancelled {count_text(len(done), 'move')}." if named else "Nothing moves.")
    return NOT_ALL if refused else 0
