"""Broker processes of a secured cluster under clients: TLS and logins everywhere, a certificate for each broker, rules, a proven
cluster log, a Redis with a password and TLS, and a directory as the store, or an S3 server that takes TLS alone.

The faults and the clients are those of ``test_cluster.py``. Brokers on S3 are ``firn serve`` with all its processes. Their topics
are tiered and soon leave the disks, so that what is read in the end comes from S3; and nothing that the brokers write, print or are
started with has the secret of the S3 server's keys in it.
"""

from __future__ import annotations

import random
import secrets
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import product
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

import psutil
import pytest
from confluent_kafka.admin import AclOperation, ConfigResource, ResourceType
from redis import Redis

from tests.faults import every_load
from tests.faults.every_load import RIGHTS, EveryLoad, OneLoad
from tests.faults.http_load import CALLERS, HttpCallers
from tests.faults.served import BUG, STORE_PROCESS
from tests.faults.strangers import STRANGER, Strangers
from tests.support.cluster import (
    NODES,
    ROOT,
    WAIT_S,
    Brokers,
    Bucket,
    brokers_running,
    create_topics,
    have_left_the_disks,
    wait_for_brokers,
)
from tests.support.cluster_faults import Fault, Faults
from tests.support.leaks import Commands, files_naming
from tests.support.redis_server import PASSWORD, RedisServer, redis_running
from tests.support.s3_server import BUCKET, S3Server, s3_server
from tests.support.secured_cluster import Right, Security, allow, denied, give, give_quota, knows_right
from tests.support.waiting import block_until

pytestmark = pytest.mark.faults

RATE = 50_000_000.0
"""Of the quota: more than a writer of these tests takes."""
TIERED: Final = {
    "remote_storage_enable": "true",
    "segment_ms": "3000",
    "local_retention_ms": "2000",
    "file_delete_delay_ms": "100",
    "retention_ms": "-1",
}
"""Segments roll and leave the disk all the time."""
ON_S3: Final = every_load.SETTINGS | {
    "remote_log_manager_task_interval_ms": 200,
    "firn_log_dir_free_bytes_min": 0,
    # Twice as many processes share the machine, and moto is slow.
    "broker_heartbeat_interval_ms": 500,
    "broker_session_timeout_ms": 3_000,
}
OBJECTS: Final = 100
"""So many of those that are not of the cluster log are searched for secrets: to get one takes moto some milliseconds."""
Durability: TypeAlias = Literal["disk", "memory", "object"]
Source: TypeAlias = Literal["environment", "file"]


class Keys(NamedTuple):
    """What lets brokers into a bucket, and how they are given it."""

    source: Source
    secret: str
    token: str
    file: Path

    @classmethod
    def made(cls, source: Source, file: Path) -> Keys:
        return cls(source, secrets.token_urlsafe(30), secrets.token_urlsafe(60), file)

    @property
    def secrets(self) -> Sequence[str]:
        return self.secret, self.token

    def environment(self, authority: Path | None) -> Mapping[str, str]:
        """Of the brokers. ``authority``: who has signed the certificate of the S3 server."""
        found = {"AWS_EC2_METADATA_DISABLED": "true"}
        if authority is not None:
            found["AWS_CA_BUNDLE"] = str(authority)
        named = {
            "aws_access_key_id": "firn",
            "aws_secret_access_key": self.secret,
            "aws_session_token": self.token,
        }
        if self.source == "environment":
            return found | {name.upper(): text for name, text in named.items()}
        self.file.write_text("[default]\n" + "".join(f"{name} = {text}\n" for name, text in named.items()))
        self.file.chmod(0o600)
        return found | {"AWS_SHARED_CREDENTIALS_FILE": str(self.file)}


class Secured(NamedTuple):
    """A secured cluster."""

    brokers: Brokers
    redis: RedisServer
    """That the brokers share."""
    security: Security
    """What lets clients in."""
    s3: OnS3 | None = None


class OnS3(NamedTuple):
    """The store of brokers that have no directory."""

    server: S3Server
    keys: Keys
    commands: Commands


@contextmanager
def secured(
    path: Path,
    *users: str,
    between: str = "SASL_SSL",
    keys: Source | None = None,
    settings: Mapping[str, Any] = every_load.SETTINGS,
    loses_power: bool = False,
) -> Iterator[Secured]:
    """Brokers on a directory, or, with ``keys``, on S3. ``settings`` are of brokers, ``loses_power`` as of ``brokers_running``."""
    security = Security(path / "tls", *users, between=between)
    with ExitStack() as stack:
        redis = stack.enter_context(redis_running(path, tls=security.folder))
        security.redis = redis.url
        s3, bucket = None, None
        if keys is not None:
            commands = stack.enter_context(Commands())
            server = stack.enter_context(s3_server("moto", path / "bucket", security.folder))
            s3 = OnS3(server, Keys.made(keys, path / "credentials"), commands)
            bucket = Bucket(server.store_at, server.port, s3.keys.environment(server.authority))
            assert settings is every_load.SETTINGS
            settings = ON_S3
        brokers = stack.enter_context(
            brokers_running(
                path, proxied=True, settings=settings, security=security, bucket=bucket, loses_power=loses_power
            )
        )
        wait_for_brokers(brokers.admin)
        yield Secured(brokers, redis, security, s3)


def wait_until_known(brokers: Brokers, security: Security) -> None:
    """Until each broker knows the last rules that were given. Whoever asks one that does not know them yet is refused."""
    user = [*RIGHTS][-1]
    for address in brokers.addresses.values():
        block_until(lambda address=address: knows_right(address, security, user, "copy"), f"{address} knows all rules")


def make_brokers_like_others(brokers: Brokers, security: Security) -> None:
    """Give them the one right that they need. From their next starts on they are no superusers."""
    between = Right(AclOperation.CLUSTER_ACTION, ResourceType.BROKER, "kafka-cluster")
    for node in NODES:
        give(brokers.admin, security.broker_principal(node), between)
    security.brokers_are_super = False


def kill_the_store_process_of(brokers: Brokers, node_id: int) -> None:
    for child in psutil.Process(brokers.processes[node_id].pid).children():
        if STORE_PROCESS in child.cmdline():
            child.send_signal(signal.SIGKILL)
            return
    raise AssertionError(f"broker {node_id} has no store process")


def told_by_doctor(cluster: Secured, node_id: int) -> str:
    """All that ``firn doctor`` prints for a broker. It does not log in, so one check fails."""
    brokers = cluster.brokers
    done = subprocess.run(
        [sys.executable, "-m", "app.cli", "doctor", "--without-partitions", *brokers.flags(node_id)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=brokers.environment,
        timeout=WAIT_S,
        check=False,
    )
    assert not BUG.search(done.stderr), done.stderr
    return done.stdout + done.stderr


def told_by_describe(brokers: Brokers) -> str:
    """Every setting of every broker and of a topic."""
    kinds = ConfigResource.Type
    asked = [*(ConfigResource(kinds.BROKER, str(node_id)) for node_id in NODES), ConfigResource(kinds.TOPIC, "t")]
    admin = brokers.admin
    found = [one.result(WAIT_S) for each in asked for one in admin.describe_configs([each]).values()]
    return repr([{name: entry.value for name, entry in one.items()} for one in found])


def check_no_leak(cluster: Secured) -> None:
    """The keys of the S3 server are where they have to be, and nowhere else."""
    brokers, s3 = cluster.brokers, cluster.s3
    assert s3 is not None
    hidden = s3.keys.secrets
    told = [told_by_describe(brokers), told_by_doctor(cluster, 1)]
    assert "ok    store" in told[-1], told[-1]
    assert [text for text in told if any(one in text for one in hidden)] == []
    assert files_naming(brokers.path, *hidden, but=[s3.keys.file]) == []
    client = s3.server.client()
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET)
    keys = [entry["Key"] for page in pages for entry in page.get("Contents", ())]
    others = [key for key in keys if "/cluster/" not in key]
    looked_at = [key for key in keys if "/cluster/" in key] + random.Random(1).sample(others, min(OBJECTS, len(others)))
    for key in looked_at:
        with suppress(client.exceptions.NoSuchKey):  # brokers delete what they need no more
            data = client.get_object(Bucket=BUCKET, Key=key)["Body"].read()
            assert not any(one.encode() in data for one in hidden), key
    assert len(s3.commands.of(STORE_PROCESS)) >= len(NODES)
    assert s3.commands.naming(*hidden) == []
    handed = s3.commands.handed(*hidden, but=["tests.support.cluster_served", STORE_PROCESS, "doctor"])
    assert handed == [], "only those have the keys that open the store"
    print(f"{len(looked_at)} of {len(keys)} objects, {len(s3.commands.of(STORE_PROCESS))} store processes")


def hold_out(
    cluster: Secured,
    kinds: Callable[[Faults], Sequence[Fault]],
    count: int,
    seed: int,
    durability: Durability | None = None,
    *,
    one_load: bool = False,
    one_by_one: bool = False,
) -> None:
    """So many faults under clients of all kinds, or of one, and a stranger who tries to harm them. What they were told is so.

    ``one_by_one``: as of ``Writing``, and so on S3, where brokers are slow.
    """
    brokers, redis, security, s3 = cluster
    for user, rights in RIGHTS.items():
        give(brokers.admin, security.principal(user), *rights)
    wait_until_known(brokers, security)
    give_quota(brokers.bootstrap, security, "writer", RATE)
    config = {} if durability is None else {"firn_durability": durability}
    tiered = TIERED if s3 is not None else None
    one_by_one = one_by_one or s3 is not None
    if one_load:
        load = OneLoad(brokers, config=config, tiered=tiered, one_by_one=one_by_one)
    else:
        load = EveryLoad(brokers, seed, config=config, tiered=tiered, one_by_one=one_by_one)
    strangers = Strangers(brokers, security)
    loads = [*load.loads, strangers]
    # Who is acknowledged from the bucket waits for it.
    without_store = [strangers] if load.in_store else None
    faults = Faults(brokers, random.Random(seed), loads, in_store=load.in_store, without_store=without_store)
    load.know(faults)
    try:
        faults.run(kinds(faults), count)
        with Redis.from_url(redis.url) as client:
            block_until(lambda: client.keys("firn:*:quota:*"), "brokers lease the quota from Redis")
        if s3 is not None:
            block_until(lambda: have_left_the_disks(brokers), "what was written first has left all disks")
        load.finish()
    finally:
        strangers.stop()
        load.stop()
    load.check()
    strangers.check()
    said = "".join(brokers.lines(node) for node in NODES)
    assert [one for one in (PASSWORD, *security.passwords.values()) if one in said] == [], "no secret is logged"
    refused = sum((denied(brokers.path / f"broker-{node}") for node in NODES), Counter())
    assert {*refused} <= {f"User:{STRANGER}", f"User:CN={STRANGER}"}, "each has the rights that it needs"
    assert refused
    assert [line for line in said.splitlines() if BUG.search(line)] == []
    if s3 is not None:
        assert have_left_the_disks(brokers), "what was read first came from S3"
        check_no_leak(cluster)
    print(f"{faults.count} faults, {load.acknowledged} records of one producer")


def hold_out_losses_of_power(path: Path, durability: Literal["disk", "memory"], count: int, seed: int) -> None:
    """So many faults: first each loss of power that ``durability`` outlives, and then all other faults among them."""
    memory = durability == "memory"
    settings = every_load.SETTINGS | {"firn_internal_durability": durability}
    with secured(path, *RIGHTS, STRANGER, settings=settings, loses_power=True) as cluster:

        def kinds(faults: Faults) -> Sequence[Fault]:
            losses = faults.of_power(memory=memory)
            return losses if count <= len(losses) else [*losses, *faults.all(), *losses, *losses]

        hold_out(cluster, kinds, count, seed, durability, one_by_one=True)


@pytest.mark.parametrize(
    ("keys", "durability"),
    [
        pytest.param(None, None, marks=pytest.mark.ci),
        pytest.param("environment", "disk", marks=pytest.mark.slow),
        pytest.param("file", "object", marks=pytest.mark.slow),
    ],
)
def test_all_that_was_acknowledged_is_kept_where_nobody_may_do_more_than_it_needs(
    tmp_path: Path, keys: Source | None, durability: Durability | None
) -> None:
    """On S3 with one kind of clients, because there are twice as many processes."""
    with secured(tmp_path, *RIGHTS, STRANGER, keys=keys) as cluster:

        def kinds(faults: Faults) -> Sequence[Fault]:
            return [faults.kill_the_controller]

        hold_out(cluster, kinds, 1, 1, durability, one_load=keys is not None)


@pytest.mark.slow
@pytest.mark.parametrize(("between", "seed"), [("SASL_SSL", 2), ("SSL", 3)])
def test_a_secured_cluster_holds_out(tmp_path: Path, between: str, seed: int) -> None:
    """Brokers that reach each other by certificates are no superusers: they have a rule instead."""
    with secured(tmp_path, *RIGHTS, STRANGER, between=between) as cluster:
        brokers, redis, security, _ = cluster
        if between == "SSL":
            make_brokers_like_others(brokers, security)

        def kinds(faults: Faults) -> Sequence[Fault]:
            def lose_redis() -> None:
                redis.stop()
                faults.go_on()
                redis.start()

            def hang_redis() -> None:
                redis.hang()
                faults.go_on()
                redis.stop()
                redis.start()

            others = [fault for fault in faults.all() if fault != faults.roll]
            return [faults.roll, *others, lose_redis, hang_redis]

        hold_out(cluster, kinds, 24, seed)


@pytest.mark.parametrize(
    ("durability", "count", "seed"),
    [
        pytest.param("disk", 2, 7, marks=pytest.mark.ci),
        pytest.param("memory", 3, 8, marks=pytest.mark.ci),
        pytest.param("disk", 24, 9, marks=pytest.mark.slow),
        pytest.param("memory", 24, 10, marks=pytest.mark.slow),
    ],
)
def test_a_secured_cluster_holds_out_losses_of_power(
    tmp_path: Path, durability: Literal["disk", "memory"], count: int, seed: int
) -> None:
    """With ``disk`` of all brokers at once, too."""
    hold_out_losses_of_power(tmp_path, durability, count, seed)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "durability", "seed"), [("environment", "disk", 5), ("file", "memory", 6), ("environment", "object", 7)]
)
def test_a_secured_cluster_on_s3_holds_out(tmp_path: Path, keys: Source, durability: Durability, seed: int) -> None:
    with secured(tmp_path, *RIGHTS, STRANGER, keys=keys) as cluster:
        brokers = cluster.brokers

        def kinds(faults: Faults) -> Sequence[Fault]:
            def kill_a_store_process() -> None:
                kill_the_store_process_of(brokers, faults.victim())
                faults.go_on()

            found = [fault for fault in faults.all() if fault != faults.roll]
            return [faults.roll, *found, kill_a_store_process, faults.kill]

        hold_out(cluster, kinds, 18, seed, durability)


@pytest.mark.slow
def test_callers_of_http_keep_their_own_rights_while_brokers_die(tmp_path: Path) -> None:
    with secured(tmp_path, *CALLERS) as (brokers, _, security, _):
        admin = brokers.admin
        create_topics(admin, *CALLERS.values())
        for user, topic in CALLERS.items():
            allow(admin, topic, security.principal(user))
        for (user, topic), address in product(CALLERS.items(), brokers.addresses.values()):
            block_until(lambda ask=(address, security, user, topic): knows_right(*ask), f"{address} knows all rules")
        callers = HttpCallers(tmp_path, brokers, security)
        faults = Faults(brokers, random.Random(4), [callers])
        try:
            faults.run([faults.kill, faults.pause, faults.kill_the_controller, faults.stop, faults.reset], 8)
        finally:
            callers.stop()
        callers.check()
