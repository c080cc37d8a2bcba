"""Three brokers with volumes and TLS: a secret that changes, and machines that are replaced, while clients write all the time."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

from confluent_kafka.admin import AdminClient, NewTopic

from infra.rehearsal.cloud import GROUP, TERMINATE_HOOK, name_of
from infra.rehearsal.keys import Keys, check_refused
from infra.rehearsal.load import Load, Stream
from infra.rehearsal.machine import Failed, Machine, Volume

if TYPE_CHECKING:
    from infra.rehearsal.scenario import Stage

FIRN: Final = "/opt/firn/current/bin/firn"
PREFIX: Final = "cluster"
NODES: Final = 3
PARTITIONS: Final = 6
REPLACE_S_MAX: Final = 300.0
SETTLE_RECORDS: Final = 200
"""That clients must get acknowledged after each change: some seconds of their writing."""


def secured_cluster(stage: Stage) -> None:
    """Three brokers with volumes: the secret changes on each in turn, then each machine is replaced, two of them at once."""
    keys = Keys(stage.work / "cluster-keys", f"*.{name_of('').partition('.')[2]}")
    keys.users["app"] = keys.users["admin"][::-1]
    arn = stage.cloud.new_secret("firn/cluster", keys.secret)
    security = {"secret": arn, "ca_pem": keys.authority.read_text()}
    volumes = [Volume(stage.cloud, stage.work) for _ in range(NODES)]
    try:
        with ExitStack() as machines:

            def boot(node_id: int) -> Machine:
                return machines.enter_context(stage.booted_beside_others(node_id, volumes[node_id], PREFIX, security))

            begun_s = time.time()
            running = [boot(node_id) for node_id in range(NODES)]
            for one in running:
                stage.wait_for_launch(one)
            load = Load(bootstrap=bootstrap_of(running), login=keys.login("admin"), replicas=NODES)
            acknowledged_s = load.first_acknowledged(60, running[0].check_hope)
            stage.row("three brokers with volumes: kernels to first acknowledged record", acknowledged_s - begun_s)
            load.create_topics()
            make_stream_topic(load)
            load.write()
            let_app_write(running[0])
            change_everywhere(stage, running, arn, keys, load)
            load.login = keys.login("admin")
            load.write()
            before = load.state()
            took_s, told = replace_all(stage, running, boot, Load(bootstrap=load.bootstrap, login=keys.login("app")))
            load.bootstrap = bootstrap_of(running)
            stage.row("… each of three machines replaced, volumes kept", took_s, told)
            stage.row("… and on the next machines", None, stage.same(before, load.state()))
    finally:
        for volume in volumes:
            volume.close()


def bootstrap_of(machines: list[Machine]) -> str:
    return ",".join(f"{one.instance.local_hostname}:9092" for one in machines)


def make_stream_topic(load: Load) -> None:
    admin = AdminClient({"bootstrap.servers": load.bootstrap, "log_level": 0, **load.login})
    for future in admin.create_topics([NewTopic("stream", PARTITIONS, NODES)]).values():
        future.result(60)


def firn(one: Machine, *arguments: str) -> str:
    """Run a command as an operator does who is logged in to the machine."""
    own = f"{one.instance.local_hostname}:9094"
    return one.run("env", "FIRN_CLIENT_CONFIG=/etc/firn/machine.properties", FIRN, *arguments, "--bootstrap", own)


def let_app_write(one: Machine) -> None:
    for operation in ("write", "describe"):
        firn(one, "acl", "add", "--allow", "User:app", "--operation", operation, "--topic", "stream")


def change_everywhere(stage: Stage, machines: list[Machine], arn: str, keys: Keys, load: Load) -> None:
    """Another certificate and another password of the administrator: each machine takes them when it looks."""
    old_login, old = dict(load.login), keys.certificate
    kept, other = (
        Stream(load, "stream", PARTITIONS),
        Stream(Load(bootstrap=load.bootstrap, login=keys.login("app")), "stream", PARTITIONS),
    )
    kept.wait_for(SETTLE_RECORDS)
    other.wait_for(SETTLE_RECORDS)
    keys.renew()
    stage.cloud.change_secret(arn, keys.secret)
    begun_s = time.time()
    for number, one in enumerate(machines):
        check_shown(keys, machines[number:], old)
        one.run("systemctl", "start", "firn-secret.service")
        one.wait_until_said("The secret has changed, and is in force", 10)
        wait_until_shown(keys, one)
        kept.wait_for(SETTLE_RECORDS)
        other.wait_for(SETTLE_RECORDS)
        firn(one, "cluster", "wait", "--timeout", "60")
    took_s = time.time() - begun_s
    check_refused(
        {"bootstrap.servers": load.bootstrap, **old_login}, "a client with the old password of the administrator"
    )
    told = f"old password, open connections: {kept.close()}; a user that stays: {other.close()}"
    stage.row("… a changed secret on all three, one after the other", took_s, told)


def check_shown(keys: Keys, machines: list[Machine], certificate: bytes) -> None:
    """Raises: Failed unless machines that have not looked yet show the certificate of before."""
    for one in machines:
        if keys.shown_certificate(one.instance.local_hostname, 9092) != certificate:
            raise Failed(f"{one.instance_id} shows another certificate before it has looked.")


def wait_until_shown(keys: Keys, one: Machine) -> None:
    end_s = time.monotonic() + 60
    host = one.instance.local_hostname
    while {keys.shown_certificate(host, port) for port in (9092, 8082)} != {keys.certificate}:
        if time.monotonic() > end_s:
            raise Failed(f"New connections to {host} are shown the old certificate.\n{one.last_words()}")
        time.sleep(0.2)


def replace_all(stage: Stage, running: list[Machine], boot: Callable[[int], Machine], load: Load) -> tuple[float, str]:
    """End each machine by its group: the first alone, then both others at once. Returns seconds, and what clients saw."""
    stream = Stream(load, "stream", PARTITIONS)
    stream.wait_for(SETTLE_RECORDS)
    begun_s = time.time()
    for together in ([0], [1, 2]):
        for node_id in together:
            ask_to_end(stage, running[node_id])
        for node_id in together:
            old = running[node_id]
            stage.cloud.hooks.wait_until_done(GROUP, TERMINATE_HOOK, old.instance_id, REPLACE_S_MAX)
            old.wait_until_said("the data on the volume is unchanged", 10)
            old.wait_until_said("All replicas were in sync after", 1)
            for other in together:
                if other > node_id and running[other].run("systemctl", "is-active", "firn.service").strip() != "active":
                    raise Failed(f"Two brokers stopped at the same time.\n{running[other].last_words()}")
            old.power_off()
            stage.cloud.terminate(old.instance_id, old.volume.volume_id if old.volume else None)
            running[node_id] = boot(node_id)
            stage.wait_for_launch(running[node_id])
            running[node_id].wait_until_said("goes on here", 1)
            stream.wait_for(SETTLE_RECORDS)
    return time.time() - begun_s, stream.close()


def ask_to_end(stage: Stage, one: Machine) -> None:
    stage.cloud.hooks.begin(GROUP, TERMINATE_HOOK, one.instance_id)
    one.instance.lifecycle_state = "Terminated"
