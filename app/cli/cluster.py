"""``firn cluster``: the state of the cluster, by any broker or by the store alone, and operators' changes of it (ADR 0029)."""

from __future__ import annotations

import random
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from app.cli.moving import drain_broker, rebalance
from app.cli.output import count_text, print_json, print_table, say, time_text
from app.cli.session import (
    BOOTSTRAP_DEFAULT,
    Bootstrap,
    Json,
    confirmed,
    connected,
    missing_folder,
    parse_assignments,
    run_async,
)
from app.core.errors import BrokerUnavailable, ConfigError, ConflictError, NotTrusted

if TYPE_CHECKING:
    from app.metadata.image.image import BrokerImage
    from app.objectstore.api import ObjectStore
    from app.wire.private import ClusterBroker, ClusterResponse

LEVEL_FEATURE_NAME: Final = "firn.version"
NAMES_SHOWN: Final = 8
"""Partitions named in a line."""
NOBODY: Final = 4
"""Exit code of ``firn cluster place`` if no broker is registered with the node id."""
NOT_WHOLE: Final = 3
"""Exit code of ``firn cluster wait`` if a replica or a leader was still missing when the time was up."""
LOOK_S: Final = 1.0
"""Between two looks of ``firn cluster wait``."""
NO_BROKER: Final = -1
LOOK_S_MIN: Final = 5.0
"""The last look has so long at least."""

app = typer.Typer(
    help="Watch a cluster of brokers, raise its level, and let brokers come and go.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


StoreUrl = Annotated[
    str,
    typer.Option(
        "--store",
        "-s",
        metavar="URL",
        help="Read this object store instead of asking brokers; works without a running broker, and writes nothing.",
    ),
]
Yes = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
NodeId = Annotated[int, typer.Argument(metavar="BROKER", min=0, help="The broker's node id.")]


@app.callback()
def _family() -> None:
    """Watch a cluster of brokers, raise its level, and let brokers come and go."""


@app.command()
def status(bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, store: StoreUrl = "", as_json: Json = False) -> None:
    """Show the controller, how many brokers are alive, which partitions lack replicas or a leader, and the moves under way."""
    found = _standing(bootstrap, store)
    if as_json:
        print_json(_status_json(found))
    else:
        sys.stdout.write(_status_text(found))


@app.command()
def brokers(bootstrap: Bootstrap = BOOTSTRAP_DEFAULT, store: StoreUrl = "", as_json: Json = False) -> None:
    """List the registered brokers: address, state, partitions, how far each has applied the cluster log, and its version level."""
    found = _standing(bootstrap, store)
    if as_json:
        print_json(
            [
                {name: getattr(one, name) for name in one.__struct_fields__} | {"lag_entries": _lag(found, one)}
                for one in found.brokers
            ]
        )
        return
    if not found.brokers:
        say("No broker is registered.")
        return
    print_table(
        (">ID", "ADDRESS", "RACK", ">EPOCH", "STATE", ">LEADS", ">REPLICAS", ">IN SYNC", ">LAG", ">CLOCK", ">LEVEL"),
        [
            (
                f"{one.node_id}*" if one.node_id == found.controller_id else str(one.node_id),
                f"{one.host}:{one.port}" if one.host else "none",
                one.rack or "–",
                str(one.broker_epoch),
                one.state,
                count_text(one.leaders),
                count_text(one.replicas),
                count_text(one.in_sync),
                "–" if (lag := _lag(found, one)) is None else count_text(lag),
                "–" if one.clock_ms is None else f"{one.clock_ms / 1000:+,.1f} s",
                str(one.level_max),
            )
            for one in found.brokers
        ],
    )
    sys.stdout.write("* is the controller. LAG is in entries of the cluster log, CLOCK is against the controller's.\n")
    if found.store:
        say(found.store)


@app.command()
def features(
    upgrade: Annotated[
        list[str] | None,
        typer.Option(
            "--upgrade", metavar="NAME=LEVEL", help="Raise a feature to this level, for good; may be repeated."
        ),
    ] = None,
    yes: Yes = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only check whether the brokers would accept it.")] = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    store: StoreUrl = "",
    as_json: Json = False,
) -> int:
    """Show the levels of the cluster's features, or raise them. A raised level never goes down again."""
    if upgrade:
        if store:
            raise ConfigError("--upgrade asks the controller: give --bootstrap instead of --store.")
        return _upgrade(_levels(upgrade), bootstrap, yes=yes, dry_run=dry_run, as_json=as_json)
    found = _standing(bootstrap, store)
    rows = [(LEVEL_FEATURE_NAME, found.level, 0, min([one.level_max for one in found.brokers], default=found.level))]
    rows[0] = (*rows[0][:3], max(rows[0][3], found.level_max if not found.level else 0))
    rows += [(name, level, level, level) for name, level in found.protocol_features.items()]
    if as_json:
        print_json([dict(zip(("feature", "level", "level_min", "level_max"), row, strict=True)) for row in rows])
        return 0
    print_table(
        ("FEATURE", ">LEVEL", ">LOWEST", ">HIGHEST THAT ALL BROKERS UNDERSTAND"), [tuple(map(str, row)) for row in rows]
    )
    if not found.level:
        sys.stdout.write(
            f"\n{LEVEL_FEATURE_NAME} is 0: the store is for one broker. `firn cluster features --upgrade {LEVEL_FEATURE_NAME}=1`"
            " lets more brokers join.\n"
        )
    return 0


@app.command()
def wait(
    steady_s: Annotated[
        float, typer.Option("--steady", metavar="SECONDS", min=0, help="It must stay so for so long without a break.")
    ] = 0.0,
    timeout_s: Annotated[
        float | None,
        typer.Option("--timeout", "-t", metavar="SECONDS", min=0, help="End with code 3 after this time. [no limit]"),
    ] = None,
    leaving: Annotated[
        int | None,
        typer.Option(
            "--leaving",
            metavar="BROKER",
            min=0,
            help="The broker that is to stop: a replica of it that is out of sync does not count, because its stop takes no"
            " replica in sync away. [none]",
        ),
    ] = None,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: Json = False,
) -> int:
    """Wait until every partition has a leader and all of its replicas in sync: the next broker may be stopped then.

    Exit code 0 if so, 3 if that took longer than --timeout.
    """
    broker = NO_BROKER if leaving is None else leaving
    return run_async(lambda: _wait(bootstrap, steady_s, timeout_s, broker, as_json=as_json))


@app.command()
def unregister(
    broker: NodeId,
    force: Annotated[
        bool, typer.Option("--force", help="Also if the broker is alive, or still has replicas of partitions.")
    ] = False,
    yes: Yes = False,
    bootstrap: Bootstrap = BOOTSTRAP_DEFAULT,
    as_json: Json = False,
) -> int:
    """Take a broker out of the cluster for good. Its node id is never given again."""

    async def look(found: ClusterResponse) -> None:
        one = next((one for one in found.brokers if one.node_id == broker), None)
        if one is None:
            raise ConflictError(f"Broker {broker} is not registered. `firn cluster brokers` lists those that are.")
        if force:
            return
        if one.state != "fenced":
            raise ConflictError(f"Broker {broker} is {one.state}: stop it first, or add --force; it ends then.")
        if one.replicas:
            raise ConflictError(
                f"Broker {broker} still has replicas of {count_text(one.replicas, 'partition')}: move them with `firn cluster"
                f" drain {broker}` first, or add --force; the partitions keep a replica on a broker that is not there."
            )

    async def work() -> int:
        from app.client.admin import AdminClient

        async with connected(bootstrap) as cluster:
            admin = AdminClient(cluster)
            await look(await admin.cluster_standing())
            if not confirmed(f"Unregister broker {broker} for good?", yes=yes):
                return 1
            await admin.unregister_broker(broker)
        if as_json:
            print_json({"node_id": broker, "unregistered": True})
        else:
            say(f"Broker {broker} is not registered any more.")
        return 0

    return run_async(work)


app.command("drain")(drain_broker)
app.command("rebalance")(rebalance)


@app.command()
def place(
    store: Annotated[
        str, typer.Option("--store", "-s", metavar="URL", help="Object store: file:///path or s3://bucket/prefix.")
    ],
    node_id: Annotated[int, typer.Option("--node-id", min=0, metavar="N", help="The broker's number.")],
    as_json: Json = False,
) -> int:
    """Show which broker is registered with a node id: its data directory, its addresses, its machine, its last sign of life.

    Exit code 0 if a broker is registered, 4 if none is. A sign of life is the heartbeat object of the broker in the store. A broker
    removes it when it stops in order. At level 0 of firn.version, a broker with heartbeats in Redis writes none.
    """
    found = run_async(lambda: _look(store, node_id))
    if as_json:
        print_json(found)
    elif found["directory_id"] is None:
        where = f"cluster {found['cluster_id']}" if found["cluster_id"] else "no cluster"
        say(f"No broker is registered with node id {node_id} in {store} ({where}).")
    else:
        sys.stdout.write(_text(found))
    return NOBODY if found["directory_id"] is None else 0


def _text(found: dict[str, Any]) -> str:
    life = found["last_sign_of_life_ms"]
    addresses = ", ".join(f"{one['host']}:{one['port']}" for one in found["endpoints"])
    rows = (
        ("Cluster", found["cluster_id"]),
        ("Node id", str(found["node_id"])),
        ("Data directory", found["directory_id"]),
        ("Instance", found["instance_id"] or "not told (firn.instance.id)"),
        ("Addresses", addresses or "none"),
        ("Registered", time_text(found["registered_ms"])),
        ("Last sign of life", "none in the store" if life is None else time_text(life)),
        ("Leads", count_text(found["partitions"], "partition")),
    )
    return "".join(f"{name:<18} {value}\n" for name, value in rows)


def _levels(texts: list[str]) -> dict[str, int]:
    """Raises: ConfigError."""
    levels: dict[str, int] = {}
    for name, text in parse_assignments(texts, "--upgrade").items():
        if not text.strip().isdecimal():
            raise ConfigError(f"--upgrade {name}={text}: the level is a whole number, as in {LEVEL_FEATURE_NAME}=1.")
        levels[name.strip()] = int(text)
    return levels


def _upgrade(levels: dict[str, int], bootstrap: str, *, yes: bool, dry_run: bool, as_json: bool) -> int:
    async def work() -> int:
        from app.client.admin import AdminClient

        async with connected(bootstrap) as cluster:
            admin = AdminClient(cluster)
            before = await admin.cluster_standing()
            for name, level in levels.items():
                await admin.update_feature(name, level, validate_only=True)
            named = ", ".join(f"{name} to {level}" for name, level in levels.items())
            if not dry_run:
                warning = "it never goes down again, and older versions of the program refuse the store from then on"
                if not confirmed(f"Raise {named}? ({warning})", yes=yes, what=f"Raising {named}: {warning}"):
                    return 1
                for name, level in levels.items():
                    await admin.update_feature(name, level)
        if as_json:
            print_json({"levels": levels, "applied": not dry_run})
        elif dry_run:
            say(f"{named}: the brokers would accept it.")
        else:
            say(f"Raised {named}.")
            if not before.level and levels.get(LEVEL_FEATURE_NAME):
                say(f"Restart broker {before.controller_id} now: from then on more brokers can join.")
        return 0

    return run_async(work)


def _standing(bootstrap: str, store: str) -> ClusterResponse:
    """How the cluster stands, by the store if one is given. Raises: FirnError."""

    async def ask() -> ClusterResponse:
        from app.client.admin import AdminClient

        async with connected(bootstrap) as cluster:
            return await AdminClient(cluster).cluster_standing()

    return run_async((lambda: _stored(store)) if store else ask)


async def _stored(url: str) -> ClusterResponse:
    """Raises: ConfigError, CorruptionError, StorageUnavailable."""
    from app.configs import BrokerConfig
    from app.machine.runtime import SystemClock
    from app.metadata.changes.features import OF_PROTOCOL
    from app.metadata.view.follower import MetadataFollower
    from app.metadata.view.standing import standing
    from app.wire.private import ClusterBroker, ClusterMove, ClusterResponse

    async with opened(url) as store:
        image = await MetadataFollower(store, SystemClock()).cluster()
    if not image.cluster_id:
        raise ConfigError(f"There is no cluster in {url}: start a broker with this store, or check the address.")
    found = standing(image, BrokerConfig())
    rest = {name: getattr(found, name) for name in found._fields if name in ClusterResponse.__struct_fields__}
    moves = [
        ClusterMove(one.topic, one.partition, list(one.replicas), list(one.adding), list(one.removing))
        for one in found.reassignments
    ]
    return ClusterResponse(
        **(rest | {"brokers": [ClusterBroker(*one) for one in found.brokers]}),
        node_id=-1,
        moves=moves,
        moves_count=found.reassignment_count,
        protocol_features=dict(OF_PROTOCOL),
    )


async def _wait(bootstrap: str, steady_s: float, timeout_s: float | None, leaving: int, *, as_json: bool) -> int:
    """The command ``firn cluster wait``. For a cluster that does not answer it waits, too."""
    import asyncio

    begun_s = time.monotonic()
    told = ""
    in_sync_since_s: float | None = None
    while True:
        left_s = None if timeout_s is None else begun_s + timeout_s - time.monotonic()
        missing = await _look_in_time(bootstrap, left_s, leaving)
        now_s = time.monotonic()
        if missing:
            in_sync_since_s = None
            if missing != told and not as_json:
                say(missing)
        else:
            in_sync_since_s = now_s if in_sync_since_s is None else in_sync_since_s
            if now_s - in_sync_since_s >= steady_s:
                break
        told = missing
        if timeout_s is not None and now_s - begun_s >= timeout_s:
            if as_json or not missing:
                _tell_wait(
                    missing or f"All replicas have been in sync for less than {steady_s:g} s.", False, as_json=as_json
                )
            return NOT_WHOLE
        await asyncio.sleep(LOOK_S)
    but = "" if leaving < 0 else f", but perhaps those of broker {leaving}"
    _tell_wait(f"Every partition has a leader and all of its replicas in sync{but}.", True, as_json=as_json)
    return 0


async def _look_in_time(bootstrap: str, left_s: float | None, leaving: int) -> str:
    """As ``what_is_missing``, within the time that is left, or ``LOOK_S_MIN`` at least."""
    import asyncio

    try:
        async with asyncio.timeout(None if left_s is None else max(left_s, LOOK_S_MIN)):
            return await what_is_missing(bootstrap, leaving)
    except TimeoutError:
        return "The cluster does not answer in time."


def _tell_wait(text: str, in_sync: bool, *, as_json: bool) -> None:
    if as_json:
        print_json({"in_sync": in_sync, "message": text})
    else:
        say(text)


async def what_is_missing(bootstrap: str, leaving: int = NO_BROKER) -> str:
    """A sentence that names the partitions without a leader or with missing replicas; empty if there are none. Replicas of
    ``leaving`` may be missing (O8).

    Raises: FirnError if a later look would not help.
    """
    from app.client.admin import AdminClient

    try:
        async with connected(bootstrap) as cluster:
            found = await AdminClient(cluster).cluster_standing(leaving=leaving)
    except NotTrusted:
        raise
    except BrokerUnavailable as error:
        await _check_may_look(bootstrap)
        return f"The cluster does not answer: {error}"
    lacks = [
        f"{what}: {_named(count, partitions)}"
        for what, count, partitions in (
            ("under-replicated", found.under_replicated_count, found.under_replicated),
            ("offline", found.offline_count, found.offline),
        )
        if count
    ]
    return f"Waiting for {'; '.join(lacks)}." if lacks else ""


async def _check_may_look(bootstrap: str) -> None:
    """Tell a refusal, which ends the connection, from a cluster that does not answer. Raises: RequestRejected."""
    from app.client.admin import AdminClient
    from app.security.acls import Operation

    with suppress(BrokerUnavailable):
        async with connected(bootstrap) as cluster:
            await AdminClient(cluster).check_may(Operation.DESCRIBE)


def _lag(found: ClusterResponse, one: ClusterBroker) -> int | None:
    """Entries of the cluster log that a broker has not applied; None if that is not known."""
    return None if one.applied < 0 else max(0, found.sequence - one.applied)


def _states(found: ClusterResponse) -> dict[str, int]:
    return {state: sum(one.state == state for one in found.brokers) for state in ("alive", "fenced", "stopping")}


def _status_json(found: ClusterResponse) -> dict[str, Any]:
    named = ("under_replicated", "under_min_isr", "offline")
    return {
        "cluster_id": found.cluster_id,
        "level": found.level,
        "controller": found.controller_id if found.controller_id >= 0 else None,
        "controller_epoch": found.controller_epoch,
        "sequence": found.sequence,
        "brokers": _states(found),
        "topics": found.topics,
        "partitions": found.partitions,
        **{f"{name}_count": getattr(found, f"{name}_count") for name in named},
        **{name: [f"{topic}-{index}" for topic, index in getattr(found, name)] for name in named},
        "reassignments_count": found.moves_count,
        "reassignments": [{field: getattr(one, field) for field in one.__struct_fields__} for one in found.moves],
    }


def _status_text(found: ClusterResponse) -> str:
    states = _states(found)
    more = ", ".join(f"{count} {state}" for state, count in states.items() if count and state != "alive")
    controller = next((one for one in found.brokers if one.node_id == found.controller_id), None)
    where = f" at {controller.host}:{controller.port}" if controller is not None else " (not registered)"
    rows = [
        ("Cluster", found.cluster_id),
        ("Level", f"{found.level} ({LEVEL_FEATURE_NAME})" + ("" if found.level else ": one broker")),
        ("Controller", f"broker {found.controller_id}{where}, epoch {found.controller_epoch}"),
        ("Brokers", f"{states['alive']} alive" + (f", {more}" if more else "")),
        ("Partitions", f"{count_text(found.partitions)} of {count_text(found.topics, 'topic')}"),
        ("Under-replicated", _named(found.under_replicated_count, found.under_replicated)),
        ("Under min ISR", _named(found.under_min_isr_count, found.under_min_isr)),
        ("Offline", _named(found.offline_count, found.offline)),
        ("Moving", _named(found.moves_count, [(one.topic, one.partition) for one in found.moves])),
        *([("Store", found.store)] if found.store else []),
    ]
    return "".join(f"{name:<18} {value}\n" for name, value in rows)


def _named(count: int, partitions: list[tuple[str, int]]) -> str:
    if not count:
        return "none"
    names = ", ".join(f"{topic}-{index}" for topic, index in partitions[:NAMES_SHOWN])
    more = f" and {count_text(count - NAMES_SHOWN)} more" if count > NAMES_SHOWN else ""
    return f"{count_text(count, 'partition')}: {names}{more}"


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[ObjectStore]:
    """An object store that is there, to be read. Raises: ConfigError, StorageUnavailable."""
    from app.machine.runtime import ThreadPool
    from app.objectstore.location import DirectoryLocation, parse_store_url
    from app.objectstore.opening import open_store

    location = parse_store_url(url)
    if isinstance(location, DirectoryLocation) and not location.path.is_dir():
        raise missing_folder(location.path, "--store")  # to open a directory store makes the folder
    pool = ThreadPool()
    try:
        store = await open_store(url, pool=pool, rng=random.Random())
        try:
            yield store
        finally:
            await store.close()
    finally:
        pool.close()


async def _look(url: str, node_id: int) -> dict[str, Any]:
    """The entry of a node id in the cluster log. Raises: ConfigError, CorruptionError, StorageUnavailable."""
    from app.machine.runtime import SystemClock
    from app.metadata.log import layout
    from app.metadata.view.follower import MetadataFollower
    from app.objectstore.api import ObjectMissing

    async with opened(url) as store:
        image = await MetadataFollower(store, SystemClock()).cluster()
        broker = image.brokers.get(node_id)
        life_ms: int | None = None
        if broker is not None:
            try:
                info = await store.head(layout.heartbeat_key(broker.broker_id, broker.directory_id))
                life_ms = int(info.modified_ms)
            except ObjectMissing:
                life_ms = None
    partitions = sum(one.leader == node_id for topic in image.topics_by_name.values() for one in topic.partitions)
    return {
        "cluster_id": image.cluster_id,
        "node_id": node_id,
        **_registration(broker, life_ms),
        "partitions": partitions,
    }


def _registration(broker: BrokerImage | None, life_ms: int | None) -> dict[str, Any]:
    if broker is None:
        return {
            "directory_id": None,
            "broker_epoch": None,
            "endpoints": [],
            "instance_id": "",
            "rack": None,
            "registered_ms": None,
            "last_sign_of_life_ms": None,
        }
    return {
        "directory_id": str(broker.directory_id),
        "broker_epoch": broker.broker_epoch,
        "endpoints": [one._asdict() for one in broker.endpoints],
        "instance_id": broker.instance_id,
        "rack": broker.rack,
        "registered_ms": int(broker.registered_ms),
        "last_sign_of_life_ms": life_ms,
    }
