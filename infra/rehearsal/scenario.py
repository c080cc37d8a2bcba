"""The steps of the rehearsal, in order. Each step is timed, and reports what it compared.

At its end a step leaves one volume and no machine. The next step begins with a machine on this volume.
"""

from __future__ import annotations

import base64
import copy
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Final

from confluent_kafka import KafkaException, Producer

from infra.rehearsal.cloud import (
    ARTIFACTS,
    BUCKET,
    GROUP,
    HOST,
    LAUNCH_HOOK,
    REGION,
    TERMINATE_HOOK,
    ZONE,
    Cloud,
    name_of,
)
from infra.rehearsal.cluster import secured_cluster
from infra.rehearsal.keys import Keys, check_refused, watched_command_lines
from infra.rehearsal.load import BOOTSTRAP, ORDERS, Load, State
from infra.rehearsal.machine import BRIDGE, Failed, Machine, Volume, detach_leftovers, machine
from infra.rehearsal.wheelhouses import Wheelhouses
from tests.infra.imds import Instance

TEMPLATE: Final = Path(__file__).parents[1] / "bootstrap" / "user_data.py.tftpl"
BOOT_S_MAX: Final = 300.0
WIDE: Final = 1_000
"""Partitions of the broker that is lost and replaced within a limit."""
STOP_S_MAX: Final = 5.0
"""How long a broker without a disk may take from the notice that ends its machine until it has stopped."""
SHARE_S_MAX: Final = 10.0
"""How long it may take until a new broker without a disk leads its share."""
ADDRESSES: Final = [f"10.42.0.{last}" for last in range(11, 255)]
"""For machines with a network of their own."""
ADVERTISED: Final = "broker-0.firn.test"
"""What clients connect to if there is TLS: certificates have names."""
FIRN: Final = "/opt/firn/current/bin/firn"


@dataclass
class Row:
    what: str
    took_s: float | None
    limit_s: float | None
    note: str


@dataclass
class Stage:
    """The state that all steps share."""

    cloud: Cloud
    work: Path
    houses: Wheelhouses
    wheelhouse: dict[str, str]
    next_wheelhouse: dict[str, str]
    volume: Volume
    load: Load = field(default_factory=Load)
    rows: list[Row] = field(default_factory=list)
    addresses: Iterator[str] = field(default_factory=lambda: iter(ADDRESSES))

    def close(self) -> None:
        self.volume.close()

    # --- machines

    def settings(self, volume: Volume | None = None, prefix: str = "prod") -> dict[str, Any]:
        """The settings that Terraform writes into the user data of a launch template."""
        return {
            "version": 1,
            "role": "broker",
            "cluster": "rehearsal",
            "node_id": 0,
            "region": REGION,
            "zone": ZONE,
            "store": f"s3://{BUCKET}/{prefix}?region={REGION}&endpoint={self.cloud.endpoint}",
            "wheelhouse": copy.copy(self.wheelhouse),
            "data": {"kind": "ebs", "volume_id": (volume or self.volume).volume_id, "filesystem": "xfs"},
            "accept_loss_of_untiered": False,
            "advertised": {"host": "127.0.0.1", "port": 9092},
            "http": {"enabled": True, "port": 8082},
            "settings": {},
            "lifecycle": {
                "autoscaling_group": GROUP,
                "launch_hook": LAUNCH_HOOK,
                "terminate_hook": TERMINATE_HOOK,
                "heartbeat_s": 5,
            },
            "endpoints": {
                "ec2": self.cloud.endpoint,
                "s3": self.cloud.endpoint,
                "autoscaling": self.cloud.hooks.url,
                "secretsmanager": self.cloud.endpoint,
            },
        }

    @contextmanager
    def booted(
        self, settings: dict[str, Any] | None = None, volume: Volume | None = None, *, baked: bool = True
    ) -> Iterator[Machine]:
        """A machine that the auto-scaling group has launched. Its kernel has just started."""
        text = json.dumps(settings or self.settings(volume))
        user_data = TEMPLATE.read_text().replace("${base64encode(bootstrap)}", base64.b64encode(text.encode()).decode())
        image = self.houses.baked_image if baked else self.houses.image
        volume = volume or self.volume
        with machine(self.cloud, self.work, image, volume, user_data) as one:
            self.cloud.hooks.begin(GROUP, LAUNCH_HOOK, one.instance_id)
            yield one
            if one.is_running():
                one.power_off()
            self.cloud.terminate(one.instance_id, volume.volume_id)

    @contextmanager
    def booted_without_disk(self, prefix: str, security: Mapping[str, Any] | None = None) -> Iterator[Machine]:
        """A machine whose data directory is on its root disk, which is new, and gone with it. It has a network of its own."""
        settings = {
            **self.settings(prefix=prefix),
            "node_id": "auto",
            "zone": None,
            "wheelhouse": None,
            "data": {"kind": "root", "volume_id": None, "filesystem": "xfs"},
            "advertised": None,
            "security": security,
        }
        text = base64.b64encode(json.dumps(settings).encode()).decode()
        user_data = TEMPLATE.read_text().replace("${base64encode(bootstrap)}", text)
        with machine(self.cloud, self.work, self.houses.baked_image, None, user_data, next(self.addresses)) as one:
            self.cloud.hooks.begin(GROUP, LAUNCH_HOOK, one.instance_id)
            yield one
            if one.is_running():
                one.power_off()
            self.cloud.terminate(one.instance_id, None)

    @contextmanager
    def booted_beside_others(
        self, node_id: int, volume: Volume, prefix: str, security: Mapping[str, Any]
    ) -> Iterator[Machine]:
        """A machine of one of several brokers with volumes. It has a network of its own, and clients are told its own name."""
        settings = {
            **self.settings(volume, prefix),
            "node_id": node_id,
            "wheelhouse": None,
            "advertised": None,
            "security": security,
            "settings": {"default.replication.factor": "3", "min.insync.replicas": "2", "firn.durability": "disk"},
        }
        text = base64.b64encode(json.dumps(settings).encode()).decode()
        user_data = TEMPLATE.read_text().replace("${base64encode(bootstrap)}", text)
        with machine(self.cloud, self.work, self.houses.baked_image, volume, user_data, next(self.addresses)) as one:
            self.cloud.hooks.begin(GROUP, LAUNCH_HOOK, one.instance_id)
            yield one
            if one.is_running():
                one.power_off()
            self.cloud.terminate(one.instance_id, volume.volume_id)

    def wait_for_launch(self, one: Machine) -> None:
        """Until the machine's boot has completed the launch hook."""
        end_s = time.monotonic() + BOOT_S_MAX
        with _told_refusals(one):
            while True:
                with suppress(TimeoutError):
                    self.cloud.hooks.wait_until_done(GROUP, LAUNCH_HOOK, one.instance_id, 1)
                    return
                one.check_hope()
                if time.monotonic() > end_s:
                    raise Failed(f"{one.instance_id} is not in service after {BOOT_S_MAX:.0f} s.")

    def serve(self, one: Machine, load: Load | None = None) -> float:
        """Wait until the machine has acknowledged a record and is in service. Returns when it acknowledged."""
        with _told_refusals(one):
            acknowledged_s = (load or self.load).first_acknowledged(BOOT_S_MAX, one.check_hope)
            self.cloud.hooks.wait_until_done(GROUP, LAUNCH_HOOK, one.instance_id, BOOT_S_MAX)
            one.wait_until_said(f"Hook {LAUNCH_HOOK} is complete", 10)
        return acknowledged_s

    def complete_the_end_of(self, one: Machine, timeout_s: float) -> float:
        """The auto-scaling group wants the machine away, which completes the hook. Returns the seconds that it took."""
        begun_s = time.time()
        self.cloud.hooks.begin(GROUP, TERMINATE_HOOK, one.instance_id)
        one.instance.lifecycle_state = "Terminated"
        self.cloud.hooks.wait_until_done(GROUP, TERMINATE_HOOK, one.instance_id, timeout_s)
        return time.time() - begun_s

    def end_by_group(self, one: Machine) -> float:
        """The auto-scaling group ends the machine: it drains, completes the hook and is terminated. Returns the drain's seconds."""
        took_s = self.complete_the_end_of(one, 300)
        one.wait_until_said("everything tiered is in the store", 10)
        one.power_off()
        self.cloud.terminate(one.instance_id, self.volume.volume_id)
        return took_s

    # --- telling

    def row(self, what: str, took_s: float | None, note: str = "", *, limit_s: float | None = None) -> None:
        self.rows.append(Row(what, took_s, limit_s, note))
        time_text = "" if took_s is None else f"{took_s:.1f} s"
        say(f"    {what}: {time_text} {note}")

    def tail(self, one: Machine) -> str:
        """How much of the tiered topic is on the machine's volume only. Raises: Failed if that is nothing."""
        status = ("tier", "status", ORDERS, "--json", "--bootstrap", BOOTSTRAP)
        count = untiered(json.loads(one.run("/opt/firn/current/bin/firn", *status)))
        if count == 0:
            raise Failed(f"Every record of {ORDERS} is in the store already: this step would prove nothing.")
        return f"{count:,} records on the volume only"

    def same(self, before: State, after: State) -> str:
        """Raises: Failed."""
        wrong = before.differences(after)
        if wrong:
            raise Failed(f"Something was lost: {'; '.join(wrong)}.")
        return f"the same: {after.summary}"


def untiered(partitions: Sequence[Mapping[str, Any]]) -> int:
    """Records that are not in the store, by what ``firn tier status --json`` prints."""
    return sum(one["log_end_offset"] - one["tiered_end_offset"] for one in partitions)


# --- the steps ---------------------------------------------------------------------------------------------------


def first_boot(stage: Stage) -> None:
    """A blank volume and an empty bucket; the release comes from the artifacts bucket."""
    with stage.booted(baked=False) as one:
        acknowledged_s = stage.serve(one)
        began = one.wait_until_said("boots on", 1)
        installed = one.wait_until_said("was installed in", 1)
        install_s = float(installed.text.split(" was installed in ")[1].split()[0])
        stage.row("first boot: kernel to first acknowledged record, release from S3", acknowledged_s - one.started_s)
        stage.row("… of which: install the release", install_s, limit_s=60)
        stage.row("… from the bootstrap's start", acknowledged_s - began.at_s)
        stage.load.create_topics()
        stage.load.write()


def begin(stage: Stage) -> None:
    """A first boot with a release in the image, for runs without the step ``first-boot``."""
    with stage.booted() as one:
        stage.serve(one)
        stage.load.create_topics()
        stage.load.write()


def lost_machine_same_volume(stage: Stage) -> None:
    """A machine disappears. Some records are only on its volume. The next machine gets the volume."""
    with stage.booted() as one:
        acknowledged_s = stage.serve(one)
        began = one.wait_until_said("boots on", 1)
        stage.row(
            "boot with a release in the image: bootstrap's start to first acknowledged record",
            acknowledged_s - began.at_s,
            limit_s=15,
        )
        stage.load.write()
        before = stage.load.state()
        tail = stage.tail(one)
        one.lose()
        stage.cloud.terminate(one.instance_id, stage.volume.volume_id)
    known_s = time.time()
    with stage.booted() as one:
        acknowledged_s = stage.serve(one)
        one.wait_until_said("goes on here", 1)
        stage.row(
            "lost machine, same volume: death known to first acknowledged record",
            acknowledged_s - known_s,
            f"{stage.same(before, stage.load.state())}; {tail}",
        )


def reboot(stage: Stage) -> None:
    """The machine shuts down and starts again: `firn-bootstrap.service` now runs the steps of the boot."""
    with stage.booted() as one:
        stage.serve(one)
        stage.load.write()
        before = stage.load.state()
        tail = stage.tail(one)
        one.power_off()
        begun_s = time.time()
        one.boot()
        acknowledged_s = stage.load.first_acknowledged(BOOT_S_MAX, one.check_hope)
        boots = sum("boots on" in line.text for line in one.journal())
        if boots != 2:
            raise Failed(f"The boot's steps were taken {boots} times instead of twice.\n{one.last_words()}")
        note = f"{stage.same(before, stage.load.state())}; {tail}"
        stage.row("reboot: kernel to first acknowledged record", acknowledged_s - begun_s, note)


def scale_to_zero_and_back(stage: Stage) -> None:
    """The group's size becomes 0, and the terminate hook drains the broker. Later the size becomes 1."""
    with stage.booted() as one:
        stage.serve(one)
        stage.load.write()
        before = stage.load.state()
        took_s = stage.end_by_group(one)
        stage.row("scale to zero: the group's request to the completed hook (drain)", took_s)
    known_s = time.time()
    with stage.booted() as one:
        acknowledged_s = stage.serve(one)
        stage.row(
            "… and back: launch to first acknowledged record",
            acknowledged_s - known_s,
            stage.same(before, stage.load.state()),
        )


def spot_notice(stage: Stage) -> None:
    """EC2 reclaims the machine: 120 s from the notice to the end."""
    with stage.booted() as one:
        stage.serve(one)
        stage.load.write()
        before = stage.load.state()
        begun_s = time.time()
        one.instance.spot_time_s = begun_s + 120
        one.instance.spot_action = "terminate"
        drained = one.wait_until_said("everything tiered is in the store", 115)
        stage.row("spot notice to drained", drained.at_s - begun_s, limit_s=110)
        one.lose()
        stage.cloud.terminate(one.instance_id, stage.volume.volume_id)
    with stage.booted() as one:
        stage.serve(one)
        stage.row("… and on the next machine", None, stage.same(before, stage.load.state()))


def upgrade(stage: Stage) -> None:
    """The launch template names the next wheelhouse. The machine ends first, and then the next machine starts."""
    with stage.booted() as one:
        stage.serve(one)
        stage.load.write()
        before = stage.load.state()
        begun_s = time.time()
        stage.end_by_group(one)
    settings = {**stage.settings(), "wheelhouse": stage.next_wheelhouse}
    with stage.booted(settings, baked=False) as one:
        acknowledged_s = stage.serve(one)
        version = one.run("/opt/firn/current/bin/firn", "--version").strip()
        if stage.houses.next_version not in version:
            raise Failed(f"The machine runs {version}, not {stage.houses.next_version}.")
        stage.row(
            "upgrade of the wheel: drain to first acknowledged record of the next version",
            acknowledged_s - begun_s,
            f"{version}; {stage.same(before, stage.load.state())}",
        )


def drained_machine_empty_volume(stage: Stage) -> None:
    """A drained broker restarts on an empty volume: all tiered records are there; data that is never tiered is listed as lost."""
    with stage.booted() as one:
        stage.serve(one)
        stage.load.write()
        before = stage.load.state()
        stage.end_by_group(one)
    empty = Volume(stage.cloud, stage.work)
    stage.volume.close()
    stage.volume = empty
    known_s = time.time()
    with stage.booted() as one:
        acknowledged_s = stage.serve(one)
        one.wait_until_said("which EC2 says is terminated: this machine takes over", 1)
        after = stage.load.state()
        tiered = {name: value for name, value in before.records.items() if not name.startswith("customers")}
        wrong = [name for name, value in tiered.items() if after.records.get(name) != value]
        if wrong:
            raise Failed(
                f"Drained records were lost: {wrong[0]} was {tiered[wrong[0]]} and is {after.records.get(wrong[0])}."
            )
        lost = "; ".join(
            f"{name} {len(getattr(before, name))} → {len(getattr(after, name))}"
            for name in ("offsets", "transactional_ids", "customers")
        )
        if before.offsets and after.offsets == before.offsets:
            raise Failed("Committed offsets survived an empty volume: this step compares nothing.")
        count = sum(number for number, _, _ in tiered.values())
        stage.row(
            "drained machine, empty volume: launch to first acknowledged record",
            acknowledged_s - known_s,
            f"all {count:,} drained records; lost as announced: {lost}",
        )


def living_machine_is_not_replaced(stage: Stage) -> None:
    """A machine disappeared, but EC2 still says ``running``. The next broker is not forced: it waits for 30 s of silence."""
    with stage.booted() as one:
        stage.serve(one)
        silent_s = one.lose()
        stage.cloud.release(one.instance_id, stage.volume.volume_id)
        empty = Volume(stage.cloud, stage.work)
        stage.volume.close()
        stage.volume = empty
        with stage.booted() as other:
            acknowledged_s = stage.serve(other)
            other.wait_until_said("(running): without force", 1)
            waited_s = acknowledged_s - silent_s
            if waited_s < 29:
                raise Failed(f"The node id was taken over after {waited_s:.1f} s, though EC2 had not said terminated.")
            stage.row("EC2 says running, empty volume: death to first acknowledged record", waited_s, "not forced")


def brokers_without_disks(stage: Stage) -> None:
    """Two machines share the leaders. A spot notice ends the first one in order, and the second is lost."""
    load, prefix = Load(), "fleet"
    with stage.booted_without_disk(prefix) as first:
        load.bootstrap = f"{first.address}:9092"
        acknowledged_s = stage.serve(first, load)
        took_s = acknowledged_s - first.started_s
        stage.row("without a disk: kernel to first acknowledged record, empty bucket", took_s, limit_s=20)
        load.create_topics()
        load.write()
        told = first.run("/opt/firn/current/bin/firn", "topic", "describe", ORDERS, "--bootstrap", load.bootstrap)
        if "object" not in told:
            raise Failed(f"{ORDERS} has no object durability:\n{told}")
        with stage.booted_without_disk(prefix) as second:
            stage.wait_for_launch(second)
            ready = second.wait_until_said("serves", 10)
            shared_s = wait_for_share(load, second)
            stage.row(
                "a second machine: in service to its share of leaders", shared_s - ready.at_s, limit_s=SHARE_S_MAX
            )
            load.write()
            before = load.state()
            given_s = time.time()
            first.instance.spot_time_s = given_s + 120
            first.instance.spot_action = "terminate"
            heard = first.wait_until_logged("firn", "is about to be taken away", 30)
            stopped = first.wait_until_logged("systemd", "firn.service: Deactivated successfully", 60)
            stage.row("… spot notice heard to broker stopped", stopped.at_s - heard.at_s, limit_s=STOP_S_MAX)
            stage.row("… spot notice given to broker stopped (asked for every 5 s)", stopped.at_s - given_s)
            first.lose()
            stage.cloud.terminate(first.instance_id, None)
            load.bootstrap = f"{second.address}:9092"
            stage.row("… and on the machine that stays", None, stage.same(before, load.state()))
            load.write()
            before = load.state()
            lost_s = second.lose()
            stage.cloud.terminate(second.instance_id, None)
    with stage.booted_without_disk(prefix) as third:
        load.bootstrap = f"{third.address}:9092"
        acknowledged_s = stage.serve(third, load)
        note = stage.same(before, load.state())
        stage.row(
            "all machines lost: death to first acknowledged record on an empty disk", acknowledged_s - lost_s, note
        )


def to_zero_without_disks_and_back(stage: Stage) -> None:
    """The group ends the only machine without a disk, and nothing runs. Later it starts one with an empty disk."""
    load, prefix = Load(), "zero"
    with stage.booted_without_disk(prefix) as one:
        load.bootstrap = f"{one.address}:9092"
        stage.serve(one, load)
        load.create_topics()
        load.write()
        before = load.state()
        took_s = stage.complete_the_end_of(one, 120)
        told = one.wait_until_logged("firn", "the broker drains", 1)
        stopped = one.wait_until_logged("systemd", "firn.service: Deactivated successfully", 60)
        stage.row("to zero without disks: the group's request to the completed hook", took_s)
        stage.row("… told to stop to broker stopped", stopped.at_s - told.at_s, limit_s=STOP_S_MAX)
    known_s = time.time()
    with stage.booted_without_disk(prefix) as one:
        load.bootstrap = f"{one.address}:9092"
        acknowledged_s = stage.serve(one, load)
        note = stage.same(before, load.state())
        stage.row("… and back on an empty disk: launch to first acknowledged record", acknowledged_s - known_s, note)


def wait_for_share(load: Load, one: Machine) -> float:
    """Until each of two brokers leads a third of all partitions. Returns when. Raises: Failed."""
    end_s = time.monotonic() + 60
    while len(led := load.leaders()) != 2 or 3 * min(led.values()) < sum(led.values()):
        if time.monotonic() > end_s:
            raise Failed(f"The new broker has no share of the leaders: {led}.\n{one.last_words()}")
        time.sleep(0.1)
    return time.time()


def a_thousand_partitions(stage: Stage) -> None:
    """A broker with many partitions disappears."""
    volume = Volume(stage.cloud, stage.work)
    settings = {**stage.settings(volume, "wide"), "wheelhouse": None}
    try:
        with stage.booted(settings, volume) as one:
            stage.serve(one)
            stage.load.create_wide_topic("wide", WIDE)
            one.lose()
            stage.cloud.terminate(one.instance_id, volume.volume_id)
        known_s = time.time()
        with stage.booted(settings, volume) as one:
            acknowledged_s = stage.serve(one)
            ends = stage.load.ends("wide", WIDE)
            if ends != [1] * WIDE:
                raise Failed(f"{sum(end != 1 for end in ends)} of {WIDE} partitions lost their record.")
            stage.row(
                f"lost broker with {WIDE:,} partitions: death known to first acknowledged record",
                acknowledged_s - known_s,
                "every partition has its record",
                limit_s=20,
            )
    finally:
        volume.close()


def http_machine(stage: Stage) -> None:
    """A machine that serves HTTP alone, as a client of the broker."""
    settings = {**stage.settings(), "role": "http", "node_id": None, "store": None, "data": None, "advertised": None}
    settings |= {"http": {"enabled": True, "port": 8083}, "settings": {"bootstrap.servers": "127.0.0.1:9092"}}
    settings["lifecycle"] = {**settings["lifecycle"], "terminate_hook": None}
    with stage.booted() as broker:
        stage.serve(broker)
        with stage.booted(settings) as one:
            with _told_refusals(one):
                stage.cloud.hooks.wait_until_done(GROUP, LAUNCH_HOOK, one.instance_id, BOOT_S_MAX)
            took_s = time.time() - one.started_s
            with urllib.request.urlopen("http://127.0.0.1:8083/readyz", timeout=30) as answer:
                if answer.status != 200:
                    raise Failed(f"/readyz of the http machine returned status {answer.status}.")
            stage.row("machine for HTTP alone: kernel to in service", took_s, "it reaches the broker")


def secured_broker(stage: Stage) -> None:
    """TLS, logins and rules: strangers stay out, a changed secret counts at once, and the next machine has everything."""
    keys = Keys(stage.work / "keys", ADVERTISED, f"*.{name_of('').partition('.')[2]}")
    arn = stage.cloud.new_secret("firn/secured", keys.secret)
    security = {"secret": arn, "ca_pem": keys.authority.read_text()}
    volume = Volume(stage.cloud, stage.work)
    settings = {**stage.settings(volume, "secured"), "wheelhouse": None, "security": security}
    settings["advertised"] = {"host": ADVERTISED, "port": 9092}
    load = Load(bootstrap=f"{ADVERTISED}:9092", login=keys.login("admin"))
    try:
        with watched_command_lines() as seen, stage.booted(settings, volume) as one:
            acknowledged_s = stage.serve(one, load)
            stage.row("TLS and logins: kernel to first acknowledged record", acknowledged_s - one.started_s)
            load.create_topics()
            load.write()
            check_strangers(keys)
            check_keys_on_disk(one)
            secrets_known = keys.words
            change_secret(stage, one, arn, keys, load)
            secrets_known |= {f"{what}, new": word for what, word in keys.words.items()}
            before = load.state()
            took_s = stage.end_by_group(one)
            stage.row("… the group's request to the completed hook (drain with the certificate)", took_s)
            found = {what for what, word in secrets_known.items() for line in one.journal() if word in line.text}
        if found or seen.holds(secrets_known):
            raise Failed(f"The journal shows {sorted(found)}, command lines {seen.holds(secrets_known)}.")
        known_s = time.time()
        with stage.booted(settings, volume) as one:
            acknowledged_s = stage.serve(one, load)
            note = stage.same(before, load.state())
            stage.row("… next machine: launch to first acknowledged record", acknowledged_s - known_s, note)
            check_strangers(keys)
            one.power_off()
            begun_s = time.time()
            one.boot()
            acknowledged_s = load.first_acknowledged(BOOT_S_MAX, one.check_hope)
            note = stage.same(before, load.state())
            stage.row("… reboot: kernel to first acknowledged record", acknowledged_s - begun_s, note)
            check_keys_on_disk(one)
            http_with_logins(stage, settings, keys)
    finally:
        volume.close()


def check_strangers(keys: Keys) -> None:
    """Who shows nothing, or something wrong, gets nothing. Raises: Failed."""
    servers = {"bootstrap.servers": f"{ADVERTISED}:9092"}
    check_refused(servers, "a client without TLS")
    check_refused(servers | keys.no_login(), "a client without a login")
    check_refused(servers | keys.login("admin", "not the password"), "a client with a wrong password")
    between = servers | {"bootstrap.servers": f"{ADVERTISED}:9094"}
    check_refused(between | keys.no_login(), "a client without a certificate at the listener of brokers")
    metrics = f"https://{ADVERTISED}:8082/metrics"
    told = [keys.ask(metrics, user)[0] for user in ("metrics", "admin", "")]
    if told != [200, 200, 401]:
        raise Failed(f"/metrics gave metrics, admin and nobody {told}.")
    status, _ = keys.ask(f"https://{ADVERTISED}:8082/v3/clusters")
    if status != 401:
        raise Failed(f"/v3/clusters gave status {status} to nobody.")


def check_keys_on_disk(one: Machine) -> None:
    """Raises: Failed if somebody but root and the broker can read what is secret."""
    folder = "/etc/firn/tls"
    names = sorted(one.run("ls", "-A", folder).split())
    found = one.run("stat", "--format=%a %U:%G %n", folder, *(f"{folder}/{name}" for name in names)).splitlines()
    wanted = [
        f"755 root:root {folder}",
        f"640 root:firn {folder}/broker.pem",
        f"644 root:firn {folder}/ca.pem",
        f"600 root:root {folder}/metrics.password",
        f"600 root:root {folder}/secret.json",
    ]
    if found != wanted:
        raise Failed(f"Files of keys are {found}.")


def change_secret(stage: Stage, one: Machine, arn: str, keys: Keys, load: Load) -> None:
    """Another certificate, another password of the administrator, and one more user, while a client is connected."""
    old = keys.users["admin"]
    connected = load.producer()
    write_one(connected)
    foreign = Keys(stage.work / "foreign-keys", *keys.hosts)
    stage.cloud.change_secret(arn, foreign.secret)
    one.run("systemctl", "start", "firn-secret.service", check=False)
    one.wait_until_said("The secret is not in force: The certificate in the secret is none that", 1)
    if keys.shown_certificate(ADVERTISED, 9092) != keys.certificate:
        raise Failed("A certificate of a foreign authority is in force.")
    keys.renew("app")
    stage.cloud.change_secret(arn, keys.secret)
    one.run("systemctl", "is-active", "firn-secret.timer")
    begun_s = time.time()
    one.run("systemctl", "start", "firn-secret.service")
    one.wait_until_said("The secret has changed, and is in force", 1)
    end_s = time.monotonic() + 60
    while {keys.shown_certificate(ADVERTISED, port) for port in (9092, 8082)} != {keys.certificate}:
        if time.monotonic() > end_s:
            raise Failed(f"New connections are shown the old certificate.\n{one.last_words()}")
        time.sleep(0.2)
    took_s = time.time() - begun_s
    servers = {"bootstrap.servers": load.bootstrap}
    check_refused(servers | keys.login("admin", old), "a client with the old password")
    write_one(connected)  # whose password is the old one: it has the same connection as before
    load.login = keys.login("admin")
    write_one(load.producer())
    one.run("env", "FIRN_CLIENT_CONFIG=/etc/firn/machine.properties", FIRN, "user", "list", "--bootstrap", own_of(one))
    stage.row("… a changed secret: unit's start to the new certificate", took_s, "open connections go on")


def own_of(one: Machine) -> str:
    """Where commands on a machine with TLS reach its broker."""
    return f"{one.instance.local_hostname}:9094"


def write_one(producer: Producer) -> None:
    """Raises: Failed unless a record is acknowledged."""
    told: list[bool] = []
    producer.produce(ORDERS, b"one more", partition=0, on_delivery=lambda error, _: told.append(error is None))
    producer.flush(30)
    if told != [True]:
        raise Failed("A client that may write was not acknowledged.")


def http_with_logins(stage: Stage, broker: Mapping[str, Any], keys: Keys) -> None:
    """A machine that serves HTTP alone logs in as its callers do, and needs no secret."""
    settings = {**broker, "role": "http", "node_id": None, "store": None, "data": None, "advertised": None}
    settings |= {"http": {"enabled": True, "port": 8083}, "settings": {"bootstrap.servers": f"{ADVERTISED}:9092"}}
    settings["lifecycle"] = {**settings["lifecycle"], "terminate_hook": None}
    settings["security"] = {**broker["security"], "secret": None}
    with stage.booted(settings) as one:
        stage.wait_for_launch(one)
        took_s = time.time() - one.started_s
        told = [keys.ask("http://127.0.0.1:8083/v3/clusters", user)[0] for user in ("admin", "")]
        if told != [200, 401]:
            raise Failed(f"/v3/clusters of the machine for HTTP gave admin and nobody {told}.\n{one.last_words()}")
        stage.row("… machine for HTTP alone, with logins: kernel to in service", took_s)


def secured_brokers_without_disks(stage: Stage) -> None:
    """Two machines show each other their certificate. The group ends the first one, and the second one has everything."""
    keys = Keys(stage.work / "fleet-keys", f"*.{name_of('').partition('.')[2]}")
    arn = stage.cloud.new_secret("firn/fleet", keys.secret)
    security = {"secret": arn, "ca_pem": keys.authority.read_text()}
    prefix = "secured-fleet"
    with stage.booted_without_disk(prefix, security) as first:
        load = Load(bootstrap=f"{first.instance.local_hostname}:9092", login=keys.login("admin"))
        acknowledged_s = stage.serve(first, load)
        stage.row("TLS without a disk: kernel to first acknowledged record", acknowledged_s - first.started_s)
        load.create_topics()
        load.write()
        with stage.booted_without_disk(prefix, security) as second:
            stage.wait_for_launch(second)
            wait_for_share(load, second)
            for number, one in enumerate((first, second)):
                # One of the two is the controller, and the other one forwards the request.
                web = f"https://{one.instance.local_hostname}:8082/v3/clusters"
                _, body = keys.ask(web, "admin")
                cluster = json.loads(body)["data"][0]["cluster_id"]
                topic = {"topic_name": f"through-{number}", "partitions_count": 1}
                status, body = keys.ask(f"{web}/{cluster}/topics", "admin", topic)
                if status != 201:
                    raise Failed(f"A topic through {one.instance_id}: status {status}, {body!r}.\n{one.last_words()}")
            load.write()
            before = load.state()
            took_s = stage.complete_the_end_of(first, 120)
            first.wait_until_said("Stopped in", 10)
            stage.row("… the group's request to the completed hook", took_s)
            first.power_off()
            load.bootstrap = f"{second.instance.local_hostname}:9092"
            stage.row("… and on the machine that stays", None, stage.same(before, load.state()))


def refusals(stage: Stage) -> None:
    """Faults that must stop a boot with one line, without formatting a disk."""
    blank = Volume(stage.cloud, stage.work)
    foreign = Volume(stage.cloud, stage.work)
    with foreign.image.open("r+b") as raw:
        raw.write(b"somebody's data")
    base = stage.settings
    nowhere = {**base(blank), "store": f"s3://{BUCKET}/prod?region={REGION}&endpoint=http://127.0.0.1:9"}
    nowhere["endpoints"] = {**nowhere["endpoints"], "s3": "http://127.0.0.1:9"}
    nowhere["wheelhouse"] = None
    cases: list[tuple[str, dict[str, Any], Volume, str]] = [
        ("S3 cannot be reached", nowhere, blank, "cannot be reached"),
        (
            "bucket of another cluster",
            {**base(blank), "cluster": "other", "wheelhouse": None},
            blank,
            "belongs to cluster rehearsal",
        ),
        ("foreign disk", {**base(foreign), "wheelhouse": None}, foreign, "is not blank"),
    ]
    try:
        for what, settings, volume, words in cases:
            before = _digest(volume)
            with stage.booted(settings, volume) as one:
                end_s = time.monotonic() + 120
                while (line := one.said("Firn does not start")) is None:
                    if time.monotonic() > end_s:
                        raise Failed(f"{what}: the boot was not refused.\n{one.last_words()}")
                    time.sleep(0.1)
                if words not in line.text:
                    raise Failed(f"{what}: refused for another reason: {line.text}.")
                took_s = line.at_s - one.started_s
                lines = [entry for entry in one.journal() if "Firn does not start" in entry.text]
                if len(lines) != 1 or one.said("has a new"):
                    raise Failed(
                        f"{what}: {len(lines)} refusals are in the journal instead of one, or a disk was formatted."
                    )
            if _digest(volume) != before:
                raise Failed(f"{what}: the disk was written.")
            stage.row(f"refused: {what}", took_s, "one line, disk as before")
    finally:
        blank.close()
        foreign.close()


def _digest(volume: Volume) -> tuple[int, str]:
    """Blocks that the volume's file uses, and a digest of its first MiB."""
    subprocess.run(["sync", str(volume.image)], check=True)
    with volume.image.open("rb") as raw:
        return volume.image.stat().st_blocks, hashlib.sha256(raw.read(1 << 20)).hexdigest()


STEPS: Final[dict[str, Callable[[Stage], None]]] = {
    "first-boot": first_boot,
    "lost": lost_machine_same_volume,
    "reboot": reboot,
    "zero": scale_to_zero_and_back,
    "spot": spot_notice,
    "empty": drained_machine_empty_volume,
    "alive": living_machine_is_not_replaced,
    "thousand": a_thousand_partitions,
    "http": http_machine,
    "object-durability": brokers_without_disks,
    "scale-to-zero": to_zero_without_disks_and_back,
    "secured": secured_broker,
    "secured-fleet": secured_brokers_without_disks,
    "cluster": secured_cluster,
    "refusals": refusals,
    "upgrade": upgrade,
}


ALONE: Final = frozenset({"object-durability", "scale-to-zero", "secured", "secured-fleet", "cluster"})
"""Steps that need no machine with the shared volume before them."""


# --- the whole ---------------------------------------------------------------------------------------------------


def rehearse(houses: Wheelhouses, work: Path, only: frozenset[str], *, limits: bool) -> int:
    """Run the steps and print their table. Returns the exit code."""
    unknown = sorted(only - set(STEPS))
    if unknown:
        say(f"there is no step {unknown[0]}; the steps are {', '.join(STEPS)}")
        return 2
    signal.signal(signal.SIGTERM, _interrupt)
    detach_leftovers(work.parent)
    (work / "hosts").write_text(hosts())
    for command in (
        ["mount", "--make-rprivate", "/"],
        ["mount", "-t", "tmpfs", "tmpfs", "/run"],
        ["mount", "--bind", str(work / "hosts"), "/etc/hosts"],
        ["mkdir", "-p", "/run/systemd/nspawn"],
        ["ip", "link", "set", "lo", "up"],
        ["ip", "address", "add", "169.254.169.254/32", "dev", "lo"],
        ["ip", "link", "add", BRIDGE, "type", "bridge"],
        ["ip", "address", "add", f"{HOST}/24", "dev", BRIDGE],
        ["ip", "link", "set", BRIDGE, "up"],
    ):
        subprocess.run(command, check=True)
    begun_s = time.monotonic()
    stage = None
    code = 1
    try:
        with ExitStack() as cleanup:
            cloud = Cloud()
            cleanup.callback(cloud.close)
            wheelhouse = {"bucket": ARTIFACTS, "key": cloud.upload(houses.archive), "sha256": houses.sha256}
            following = {"bucket": ARTIFACTS, "key": cloud.upload(houses.next_archive), "sha256": houses.next_sha256}
            stage = Stage(cloud, work, houses, wheelhouse, following, Volume(cloud, work))
            cleanup.callback(stage.close)
            if only - ALONE and "first-boot" not in only:
                begin(stage)
            for name, step in STEPS.items():
                if not only or name in only:
                    say(f"{name}: {' '.join((step.__doc__ or '').split())}")
                    step(stage)
        late = [
            row for row in stage.rows if row.limit_s is not None and row.took_s is not None and row.took_s > row.limit_s
        ]
        code = 1 if late and limits else 0
        for row in late:
            say(f"TOO SLOW: {row.what}: {row.took_s:.1f} s, limit {row.limit_s:.0f} s")
    except (Failed, KafkaException, OSError, subprocess.SubprocessError) as error:
        say(f"FAILED: {error}")
        say(f"the journals of the machines that ran are in {work}")
    except KeyboardInterrupt:
        say("interrupted: all processes of the rehearsal have ended")
        code = 130
    if stage is not None:
        print_table(stage.rows, time.monotonic() - begun_s)
    return code


def hosts() -> str:
    """In place of the names that a VPC resolves: ``/etc/hosts`` of machines and clients."""
    lines = [f"127.0.0.1 localhost {ADVERTISED} {Instance().local_hostname}"]
    return "".join(f"{line}\n" for line in [*lines, *(f"{address} {name_of(address)}" for address in ADDRESSES)])


def print_table(rows: list[Row], took_s: float) -> None:
    width = max((len(row.what) for row in rows), default=0)
    cores = os.cpu_count() or 1
    sys.stdout.write(f"\n{'STEP':<{width}}  {'TIME':>8}  {'LIMIT':>6}  COMPARED\n")
    for row in rows:
        time_text = "" if row.took_s is None else f"{row.took_s:.1f} s"
        limit = "" if row.limit_s is None else f"{row.limit_s:.0f} s"
        sys.stdout.write(f"{row.what:<{width}}  {time_text:>8}  {limit:>6}  {row.note}\n")
    sys.stdout.write(f"\n{took_s:.0f} s in all; {cores} cores, load {os.getloadavg()[0]:.1f}. AWS was not used.\n")
    sys.stdout.flush()


def _interrupt(number: int, frame: FrameType | None) -> None:
    del number, frame
    raise KeyboardInterrupt


@contextmanager
def _told_refusals(one: Machine) -> Iterator[None]:
    """Add the machine's last journal lines to a failure."""
    try:
        yield
    except (Failed, TimeoutError) as error:
        raise Failed(f"{error}\n{one.last_words()}") from error


def say(text: str) -> None:
    sys.stdout.write(f"==> {text}\n")
    sys.stdout.flush()
