"""``firn iam``: the rights that Firn needs in AWS. Tests: ``tests/infra/iam/test_policy.py``."""

from __future__ import annotations

import random
import re
import uuid
from collections.abc import Sequence
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final

import typer

from app.cli.output import print_json
from app.cli.session import run_async
from app.core.errors import ConfigError

if TYPE_CHECKING:
    from app.core.units import TopicId
    from app.objectstore.location import S3Location

_KEY_ARN: Final = re.compile(r"arn:(aws[a-z-]*):kms:[a-z0-9-]+:[0-9]{12}:key/[A-Za-z0-9-]+")

app = typer.Typer(
    help="Print the permissions that Firn needs in AWS.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


class RoleName(StrEnum):
    """Role that gets the policy."""

    BROKER = "broker"
    SPARK = "spark"
    HTTP = "http"


@app.callback()
def _family() -> None:
    """Print the permissions that Firn needs in AWS."""


@app.command()
def policy(
    role: Annotated[RoleName, typer.Option("--role", help="Role that gets the policy.")],
    store: Annotated[
        str, typer.Option("--store", "-s", metavar="URL", help="The cluster's store: s3://bucket/prefix.")
    ],
    wal_store: Annotated[
        str | None,
        typer.Option("--wal-store", metavar="URL", help="Store of the write-ahead logs, if they have their own."),
    ] = None,
    topic: Annotated[
        list[str] | None,
        typer.Option(
            "--topic",
            "-t",
            metavar="NAME|ID",
            help="For spark: a topic that jobs may read; default: all topics. A name is looked up in the store, an id is not.",
        ),
    ] = None,
    kms_key: Annotated[
        list[str] | None,
        typer.Option(
            "--kms-key",
            metavar="ARN",
            help="A KMS key: the one that encrypts the bucket, and those of topics (firn.tier.kms.key.id). May be repeated.",
        ),
    ] = None,
) -> int:
    """Print the least policy that lets a role do its work in the cluster's bucket, as JSON.

    Brokers read and write everything of the cluster. Spark reads topics. `firn job compact` writes segments, so give it the
    broker's policy. `firn job audit` reads the whole bucket, so give it a policy without --topic. An http process needs no access
    to the bucket: its policy denies all access.
    """
    from app.iam.policy import policy_of
    from app.objectstore.location import S3Location, check_locations, parse_store_url

    location = parse_store_url(store)
    if not isinstance(location, S3Location):
        raise ConfigError(
            f"{store} is a directory, but AWS policies are for S3 stores. Name an S3 store: s3://bucket/prefix."
        )
    wal_location = None
    if wal_store is not None:
        check_locations(store, wal_store)
        wal_location = parse_store_url(wal_store)
    if topic and role is not RoleName.SPARK:
        raise ConfigError(
            f"--topic limits the topics that Spark may read; a policy for {role} has no topics. Remove --topic."
        )
    named_keys = [each.kms_key_id for each in (location, wal_location) if isinstance(each, S3Location)]
    keys = kms_key or [key for key in dict.fromkeys(named_keys) if key is not None]
    partition = _partition(location.region or "")
    for key in keys:
        told = _KEY_ARN.fullmatch(key)
        if told is None:
            raise ConfigError(
                f"{key!r} is not the ARN of a KMS key, but a policy needs an ARN. "
                "Write --kms-key arn:aws:kms:region:account:key/id."
            )
        partition = told[1]
    named = _topic_ids(location, topic or ())
    print_json(
        policy_of(
            role.value,
            location,
            wal_location=wal_location,
            topic_ids=named,
            kms_key_arns=keys,
            partition=partition,
        )
    )
    return 0


def _partition(region: str) -> str:
    """The part of AWS that a region lies in, as ARNs name it."""
    if region.startswith("cn-"):
        return "aws-cn"
    return "aws-us-gov" if region.startswith("us-gov-") else "aws"


def _topic_ids(location: S3Location, topics: Sequence[str]) -> list[TopicId]:
    """Ids of topics; names are looked up in the store's cluster log. Raises: ConfigError, CorruptionError, StorageUnavailable."""
    from app.core.units import TopicId

    ids = {name: _parsed_id(name) for name in topics}
    names = [name for name, found in ids.items() if found is None]
    if names:
        ids |= run_async(lambda: _looked_up(location, names))
    return [TopicId(found) for found in ids.values() if found is not None]


def _parsed_id(text: str) -> uuid.UUID | None:
    """A topic id as keys have it; anything else is a name."""
    try:
        found = uuid.UUID(text)
    except ValueError:
        return None
    return found if str(found) == text else None


async def _looked_up(location: S3Location, names: Sequence[str]) -> dict[str, uuid.UUID | None]:
    from app.machine.runtime import SystemClock, ThreadPool
    from app.metadata.view.follower import MetadataFollower
    from app.objectstore.opening import open_store

    pool = ThreadPool()
    try:
        store = await open_store(location, pool=pool, rng=random.Random())
        try:
            image = await MetadataFollower(store, SystemClock()).cluster()
        finally:
            await store.close()
    finally:
        pool.close()
    if not image.cluster_id:
        raise ConfigError(f"There is no Firn cluster in {location}: name the store that the cluster's brokers have.")
    found: dict[str, uuid.UUID | None] = {}
    for name in names:
        topic = image.topic(name)
        if topic is None:
            raise ConfigError(f"There is no topic {name} in {location}. Name a future topic by its id.")
        found[name] = topic.topic_id
    return found
