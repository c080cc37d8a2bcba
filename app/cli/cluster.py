"""``firn cluster``: what the store says of the cluster, without a broker."""

from __future__ import annotations

import random
import sys
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from app.cli.output import count_text, print_json, say, time_text
from app.cli.session import Json, missing_folder, run_async

if TYPE_CHECKING:
    from app.metadata.cluster import BrokerImage

NOBODY: Final = 4
"""Exit code of ``firn cluster place`` if no broker is registered with the node id."""

app = typer.Typer(
    help="Show what the object store says of the cluster. Nothing is written.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def _family() -> None:
    """Show what the object store says of the cluster. Nothing is written."""


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
    removes it when it stops in order. A broker with heartbeats in Redis writes none.
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


async def _look(url: str, node_id: int) -> dict[str, Any]:
    """What the cluster log says of a node id. Raises: ConfigError, CorruptionError, StorageUnavailable."""
    from app.machine.runtime import SystemClock, ThreadPool
    from app.metadata import layout
    from app.metadata.follower import MetadataFollower
    from app.objectstore.api import ObjectMissing
    from app.objectstore.location import DirectoryLocation, parse_store_url
    from app.objectstore.opening import open_store

    location = parse_store_url(url)
    if isinstance(location, DirectoryLocation) and not location.path.is_dir():
        raise missing_folder(location.path, "--store")  # to open a directory store makes the folder
    pool = ThreadPool()
    try:
        store = await open_store(url, pool=pool, rng=random.Random())
        try:
            image = await MetadataFollower(store, SystemClock()).cluster()
            broker = image.brokers.get(node_id)
            life_ms: int | None = None
            if broker is not None:
                try:
                    info = await store.head(layout.heartbeat_key(broker.broker_id, broker.directory_id))
                    life_ms = int(info.modified_ms)
                except ObjectMissing:
                    life_ms = None
        finally:
            await store.close()
    finally:
        pool.close()
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
