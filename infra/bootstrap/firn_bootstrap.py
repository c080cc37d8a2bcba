"""From a machine that has just booted to a broker that serves: settings, volume, release, node id, start.

    python3 firn_bootstrap.py --settings /etc/firn/bootstrap.json [--wheelhouse DIR]

The user data starts it on the first boot, `firn-bootstrap.service` on every later one. Each step looks at what is there before
it does anything, so a second run changes nothing. Each step is one line in the journal. Whatever stops the boot is one line
too, and from then on nothing is changed: ``Refused`` is raised before a step writes.

What must not be lost decides the order. Settings, the machine's zone and the bucket are checked before a disk is touched. A disk
is formatted only if it is blank. A disk with data is used only if it says that it belongs to this node of this cluster. A node
id is taken over by force only if EC2 says ``terminated`` of the machine that the cluster log names; in every other case the
broker's own rule for a single copy decides (``docs/adr/0018-take-over-of-a-single-copy.md``).

Standard library only, Python 3.11. ``Machine`` is everything that touches the machine; tests put theirs in its place.
"""

from __future__ import annotations

import argparse
import base64
import fcntl
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tarfile
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from firn_aws import METADATA, Aws, AwsError, Clock, Http, Metadata, SystemClock, Unreachable, UrllibHttp

SETTINGS: Final = "/etc/firn/bootstrap.json"
USER: Final = "firn"
KAFKA_PORT: Final = 9092
"""Where a broker listens. What clients connect to is ``advertised``, which a load balancer may forward from another port."""
LABEL: Final = "firn"
"""Label of the file system of every data volume."""
MARKER: Final = "volume.json"
"""In the root of a data volume: which node of which cluster it belongs to."""
BLANK_BYTES: Final = 1 << 20
"""A disk whose first bytes are zeros, and in which blkid finds nothing, is blank."""
EBS_MODEL: Final = "Amazon Elastic Block Store"
INSTANCE_STORE_MODEL: Final = "Amazon EC2 NVMe Instance Storage"
EBS_DEVICE_NAME: Final = "/dev/sdf"
"""What AttachVolume wants to hear. The kernel names the device otherwise; its serial number finds it."""
VOLUME_WAIT_S: Final = 900.0
"""How long another machine may keep the volume. A machine that shuts down may drain first."""
DEVICE_WAIT_S: Final = 120.0
START_WAIT_S: Final = 3600.0
"""How long a broker may take until it serves: it may have to wait until the old one counts as silent, and to recover."""
HEALTHY_WAIT_S: Final = 120.0
POLL_S: Final = 1.0
COMMAND_TIMEOUT_S: Final = 600.0
PARTITIONS_NAMED_MAX: Final = 20

EFFECT_OF_BOOTSTRAP: Final = {
    "node.id": "node_id",
    "broker.id": "node_id",
    "log.dirs": "the data volume",
    "log.dir": "the data volume",
    "firn.data.dir": "the data volume",
    "firn.store.url": "store",
    "firn.store": "store",
    "listeners": "the security group, which knows one port",
    "firn.listen": "the security group, which knows one port",
    "advertised.listeners": "advertised",
    "firn.advertise": "advertised",
    "firn.http.listen": "http",
    "firn.http": "http",
    "broker.rack": "zone",
    "firn.rack": "zone",
    "firn.instance.id": "the instance metadata",
    "firn.take.over": "what EC2 says of the old machine",
}
"""Settings of the broker that the first boot decides, and from what. They may not be among ``settings``."""


_LOSS: Final = (
    "What that machine had not uploaded is lost: last records, committed offsets, transactional ids, compacted topics."
)


class Refused(Exception):
    """The boot stops here. The text says what was found and how to mend it."""


class SettingsError(Refused):
    """``bootstrap.json`` is not of the shape that this version reads."""


# --- settings ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Wheelhouse:
    bucket: str
    key: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Data:
    kind: str
    volume_id: str
    filesystem: str


@dataclass(frozen=True, slots=True)
class Lifecycle:
    autoscaling_group: str
    launch_hook: str
    terminate_hook: str
    heartbeat_s: int


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """``s3://bucket/prefix?region=…&endpoint=…``"""

    bucket: str
    prefix: str
    """Empty, or with a slash at its end."""
    region: str
    endpoint: str

    @property
    def name(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")


@dataclass(frozen=True, slots=True)
class Settings:
    """``bootstrap.json``, version 1. The launch template writes it."""

    role: str
    cluster: str
    node_id: int
    region: str
    zone: str
    store: str
    wheelhouse: Wheelhouse | None
    data: Data | None
    accept_loss_of_untiered: bool
    advertised_host: str
    advertised_port: int
    http_enabled: bool
    http_port: int
    broker: Mapping[str, str]
    lifecycle: Lifecycle | None
    endpoints: Mapping[str, str] = field(default_factory=dict)

    @property
    def store_url(self) -> StoreUrl:
        parts = urlsplit(self.store)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        prefix = parts.path.strip("/")
        return StoreUrl(
            bucket=parts.netloc,
            prefix=f"{prefix}/" if prefix else "",
            region=options.get("region", self.region),
            endpoint=options.get("endpoint", ""),
        )


def parse_settings(text: str) -> Settings:
    """Read ``bootstrap.json``. Anything unknown, missing or of another type is refused. Raises: SettingsError."""
    try:
        raw = json.loads(text, object_pairs_hook=_once)
    except ValueError as error:
        raise SettingsError(f"bootstrap.json is not JSON: {error}") from error
    top = _Fields(raw, "")
    version = top.integer("version", 1, 1 << 31)
    if version != 1:
        raise SettingsError(f"bootstrap.json has version {version}; this release reads version 1")
    role = top.choice("role", ("broker", "http"))
    broker_role = role == "broker"
    wheelhouse = top.optional_object("wheelhouse")
    data = top.optional_object("data")
    lifecycle = top.optional_object("lifecycle")
    advertised = top.optional_object("advertised")
    web = top.object("http")
    endpoints = top.strings("endpoints")
    for name, url in endpoints.items():
        if name not in ("imds", "ec2", "s3", "autoscaling") or not re.fullmatch(r"https?://[^\s/]+", url):
            raise SettingsError(
                f"bootstrap.json: endpoints.{name} must be imds, ec2, s3 or autoscaling, and an http URL"
            )
    node_id = top.integer("node_id", 0, (1 << 31) - 1, optional=not broker_role)
    settings = Settings(
        role=role,
        cluster=top.text("cluster", r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"),
        node_id=node_id,
        region=top.text("region", r"[a-z]{2}(-[a-z]+)+-\d"),
        zone=top.text("zone", r"[a-z]{2}(-[a-z]+)+-\d[a-z]|[a-z0-9-]+"),
        store=top.text(
            "store", r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^\s?#]*)?(\?[^\s#]*)?", optional=not broker_role
        ),
        wheelhouse=None
        if wheelhouse is None
        else Wheelhouse(
            wheelhouse.text("bucket", r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"),
            wheelhouse.text("key", r"\S(.*\S)?"),
            wheelhouse.text("sha256", r"[0-9a-f]{64}"),
        ),
        data=None if data is None else _data(data),
        accept_loss_of_untiered=top.flag("accept_loss_of_untiered"),
        advertised_host="" if advertised is None else advertised.text("host", r"[A-Za-z0-9.:_-]+"),
        advertised_port=9092 if advertised is None else advertised.integer("port", 1, 65535),
        http_enabled=web.flag("enabled"),
        http_port=web.integer("port", 1, 65535),
        broker=top.strings("settings"),
        lifecycle=None
        if lifecycle is None
        else Lifecycle(
            lifecycle.text("autoscaling_group", r"\S(.*\S)?"),
            lifecycle.text("launch_hook", r"\S*", optional=True),
            lifecycle.text("terminate_hook", r"\S*", optional=True),
            lifecycle.integer("heartbeat_s", 1, 7200),
        ),
        endpoints=endpoints,
    )
    for fields in (top, wheelhouse, data, lifecycle, advertised, web):
        if fields is not None:
            fields.nothing_else()
    _check_together(settings)
    return settings


def _data(fields: _Fields) -> Data:
    kind = fields.choice("kind", ("ebs", "instance-store"))
    ebs = kind == "ebs"
    return Data(
        kind=kind,
        volume_id=fields.text("volume_id", r"vol-[0-9a-f]{8,17}", optional=not ebs)
        if ebs
        else fields.nothing("volume_id"),
        filesystem=fields.choice("filesystem", ("ext4", "xfs")),
    )


def _check_together(settings: Settings) -> None:
    if not settings.zone.startswith(settings.region):
        raise SettingsError(f"bootstrap.json: zone {settings.zone} is not in region {settings.region}")
    for name, value in settings.broker.items():
        if re.search(r"[\x00-\x08\x0a-\x1f\x7f]", name + value) or not name.strip():
            raise SettingsError(f"bootstrap.json: setting {name!r} has a control character in its name or value")
    if settings.role == "http":
        if settings.data is not None:
            raise SettingsError("bootstrap.json: role http has no data volume; data must be null")
        unknown = sorted(set(settings.broker) - set(HTTP_SETTINGS))
        if unknown or not settings.broker.get("bootstrap.servers"):
            raise SettingsError(
                "bootstrap.json: settings of role http must have bootstrap.servers, and may have "
                f"{', '.join(HTTP_SETTINGS[1:])}" + (f"; it has {', '.join(unknown)}" if unknown else "")
            )
        return
    if settings.data is None or not settings.advertised_host:
        raise SettingsError("bootstrap.json: role broker needs data and advertised")
    if settings.data.kind == "instance-store" and not settings.accept_loss_of_untiered:
        raise SettingsError(
            "bootstrap.json: an instance store loses un-tiered records, committed offsets, transactional ids and compacted topics "
            "with its machine; set accept_loss_of_untiered, or use an EBS volume"
        )
    for name, owner in EFFECT_OF_BOOTSTRAP.items():
        if name in settings.broker:
            raise SettingsError(f"bootstrap.json: settings must not have {name}; it comes from {owner}")


HTTP_SETTINGS: Final = ("bootstrap.servers", "firn.http.allowed.hosts", "firn.http.allowed.origins")
"""What ``settings`` may hold on a machine that serves HTTP alone."""


class _Fields:
    """One JSON object that is read field by field; what was not read is refused."""

    def __init__(self, raw: object, where: str) -> None:
        if not isinstance(raw, dict):
            raise SettingsError(f"bootstrap.json: {where.rstrip('.') or 'it'} must be an object")
        self._raw: dict[str, Any] = raw
        self._where = where
        self._read: set[str] = set()

    def _take(self, name: str) -> Any:
        self._read.add(name)
        if name not in self._raw:
            raise SettingsError(f"bootstrap.json: {self._where}{name} is missing")
        return self._raw[name]

    def text(self, name: str, pattern: str, *, optional: bool = False) -> str:
        value = self._take(name)
        if optional and value in (None, ""):
            return ""
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise SettingsError(f"bootstrap.json: {self._where}{name} is {json.dumps(value)}, which is not allowed")
        return value

    def nothing(self, name: str) -> str:
        self._read.add(name)
        if self._raw.get(name) not in (None, ""):
            raise SettingsError(f"bootstrap.json: {self._where}{name} must be null here")
        return ""

    def choice(self, name: str, allowed: Sequence[str]) -> str:
        value = self._take(name)
        if value not in allowed:
            raise SettingsError(
                f"bootstrap.json: {self._where}{name} is {json.dumps(value)}; it must be {' or '.join(allowed)}"
            )
        return str(value)

    def integer(self, name: str, low: int, high: int, *, optional: bool = False) -> int:
        value = self._take(name)
        if optional and value is None:
            return low
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise SettingsError(
                f"bootstrap.json: {self._where}{name} is {json.dumps(value)}; it must be a whole number from {low} to {high}"
            )
        return value

    def flag(self, name: str) -> bool:
        value = self._take(name)
        if not isinstance(value, bool):
            raise SettingsError(f"bootstrap.json: {self._where}{name} must be true or false")
        return value

    def object(self, name: str) -> _Fields:
        return _Fields(self._take(name), f"{self._where}{name}.")

    def optional_object(self, name: str) -> _Fields | None:
        return None if self._take(name) is None else self.object(name)

    def strings(self, name: str) -> Mapping[str, str]:
        value = self._take(name)
        if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
            raise SettingsError(f"bootstrap.json: {self._where}{name} must be an object of texts")
        return dict(value)

    def nothing_else(self) -> None:
        unknown = sorted(set(self._raw) - self._read)
        if unknown:
            raise SettingsError(f"bootstrap.json: {self._where}{unknown[0]} is not known to this release")


def _once(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name} is there twice")
        found[name] = value
    return found


# --- the machine -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Done:
    """A command that has ended."""

    code: int
    out: str
    error: str

    @property
    def last_words(self) -> str:
        """The last line that says something, for one line in the journal."""
        lines = [line.strip() for line in (self.error or self.out).splitlines() if line.strip()]
        return lines[-1][:500] if lines else f"exit code {self.code}"


class Machine:
    """The file system, commands and the journal. ``root`` is where its paths begin; tests give a directory."""

    def __init__(self, root: Path = Path("/"), clock: Clock | None = None) -> None:
        self.root = root
        self.clock: Clock = clock or SystemClock()

    def path(self, absolute: str) -> Path:
        return self.root / absolute.lstrip("/")

    def run(self, *command: str, user: str | None = None, environment: Mapping[str, str] | None = None) -> Done:
        """Run a command to its end. A command that is not there, or takes too long, has failed. Raises: nothing of its own."""
        env = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=COMMAND_TIMEOUT_S,
                user=user,
                group=user,
                extra_groups=None if user is None else [],
                env=env | dict(environment or {}),
                cwd="/",
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return Done(127, "", f"{command[0]}: {error}")
        return Done(done.returncode, done.stdout, done.stderr)

    def say(self, text: str, *, failed: bool = False) -> None:
        """One line in the journal, and one for whoever watches."""
        line = " ".join(text.split())
        journal = self.path("/run/systemd/journal/socket")
        told = False
        if journal.exists():
            message = f"MESSAGE={line}\nPRIORITY={3 if failed else 6}\nSYSLOG_IDENTIFIER=firn-bootstrap\n".encode()
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as datagram:
                datagram.sendto(message, str(journal))
            told = _is_journal(sys.stdout.fileno())
        if not told:
            sys.stdout.write(f"firn-bootstrap: {line}\n")
            sys.stdout.flush()

    def own(self, path: Path, user: str, group: str) -> None:
        shutil.chown(path, user, group)

    def mounted_from(self, place: str) -> str | None:
        """The device that is mounted there, None if nothing is."""
        found = None
        for line in self.path("/proc/self/mountinfo").read_text().splitlines():
            fields = line.split()
            if fields[4] == place:
                found = fields[fields.index("-") + 2]
        return found


def _is_journal(descriptor: int) -> bool:
    """Whether what is written there goes to the journal anyway."""
    found = os.fstat(descriptor)
    return os.environ.get("JOURNAL_STREAM") == f"{found.st_dev}:{found.st_ino}"


@dataclass(frozen=True, slots=True)
class Disk:
    """A disk as sysfs shows it."""

    name: str
    serial: str
    model: str
    partitions: tuple[str, ...]

    @property
    def device(self) -> str:
        return f"/dev/{self.name}"


def disks(machine: Machine) -> list[Disk]:
    """Every disk of the machine, by name."""
    found = []
    folder = machine.path("/sys/block")
    for entry in sorted(folder.iterdir()) if folder.is_dir() else ():
        device = entry / "device"
        found.append(
            Disk(
                name=entry.name,
                serial=_line_of(device / "serial"),
                model=_line_of(device / "model"),
                partitions=tuple(sorted(one.parent.name for one in entry.glob("*/partition"))),
            )
        )
    return found


def _line_of(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""  # not every kind of disk says it


# --- the boot ----------------------------------------------------------------------------------------------------


class Boot:
    """One boot of one machine. ``run`` does everything; the steps are in its order."""

    def __init__(
        self,
        settings: Settings,
        machine: Machine,
        http: Http,
        metadata: Metadata,
        aws: Aws,
        wheelhouse: Path | None,
    ) -> None:
        self._settings = settings
        self._machine = machine
        self._http = http
        self._metadata = metadata
        self._aws = aws
        self._wheelhouse = wheelhouse
        self._instance_id = ""
        self._beat_s = machine.clock.monotonic_s()
        self._begun_s = self._beat_s

    def run(self) -> None:
        """Raises: Refused, Unreachable, AwsError, OSError."""
        self.check_place()
        if self._settings.role == "broker":
            self.check_bucket()
            device = self.find_disk()
            self.make_file_system(device)
            self.mount(device)
            self.claim_bucket()
        release = self.install_release()
        self._beat()  # an installation takes its time
        self.install_units(release)
        self.write_settings()
        if self._settings.role == "broker":
            unit = "firn.service"
            force = self.must_take_over(release)
            self.examine(release)
        else:
            unit, force = "firn-http.service", False
        self.start(unit, force=force)
        if self._settings.role == "broker":
            self.say_where(release)
        else:
            self.wait_until_healthy()
        self.complete_launch()

    # --- before anything is touched

    def check_place(self) -> None:
        self._instance_id = self._metadata.need("meta-data/instance-id")
        zone = self._metadata.need("meta-data/placement/availability-zone")
        if zone != self._settings.zone:
            raise Refused(
                f"This machine is in zone {zone}, and node {self._settings.node_id} belongs into {self._settings.zone}: "
                "correct the subnets of its auto-scaling group."
            )
        self._say(f"Cluster {self._settings.cluster}, {self._who()}: boots on {self._instance_id} in {zone}.")

    def check_bucket(self) -> None:
        store = self._settings.store_url
        try:
            found = self._cluster_of_bucket()
        except Unreachable as error:
            raise Refused(
                f"The store {store.name} cannot be reached: {error}. Check the gateway endpoint of S3 and the route tables. "
                "No disk was touched."
            ) from error
        except AwsError as error:
            raise Refused(
                f"The store {store.name} refuses this machine's role ({error}). "
                "Check the role's policy, and the bucket's name and region. No disk was touched."
            ) from error
        self._say(f"The store {store.name} " + ("is new." if found is None else f"belongs to cluster {found}."))

    def _cluster_of_bucket(self) -> str | None:
        store = self._settings.store_url
        body = self._aws.get_object(store.bucket, f"{store.prefix}cluster/name", store.region, store.endpoint)
        if body is None:
            return None
        try:
            raw = json.loads(body)
            version, cluster = raw["version"], str(raw["cluster"])
        except (ValueError, KeyError, TypeError) as error:
            raise Refused(
                f"Object cluster/name of {store.name} is damaged. Its text is the cluster's name: restore it."
            ) from error
        if version != 1:
            raise Refused(f"Object cluster/name of {store.name} has version {version}; this release reads version 1.")
        if cluster != self._settings.cluster:
            raise Refused(
                f"The store {store.name} belongs to cluster {cluster}, and this machine to {self._settings.cluster}. "
                "Give each cluster a bucket or a prefix of its own. No disk was touched."
            )
        return cluster

    def claim_bucket(self) -> None:
        """Write the cluster's name into a bucket that has none. A race with another broker is decided by the bucket."""
        store = self._settings.store_url
        if self._cluster_of_bucket() is not None:
            return
        body = json.dumps({"version": 1, "cluster": self._settings.cluster}).encode()
        if self._aws.put_object_if_absent(
            store.bucket, f"{store.prefix}cluster/name", body, store.region, store.endpoint
        ):
            self._say(f"The store {store.name} now belongs to cluster {self._settings.cluster}.")
        else:
            self._cluster_of_bucket()

    # --- the disk

    def find_disk(self) -> str:
        data = self._data
        if data.kind == "ebs":
            self._attach(data.volume_id)
            serial = data.volume_id.replace("-", "")
            disk = self._wait_for_disk(f"volume {data.volume_id}", lambda one: one.serial == serial)
        else:
            disk = self._wait_for_disk("an instance store", lambda one: one.model == INSTANCE_STORE_MODEL)
        if disk.partitions:
            raise Refused(
                f"Disk {disk.device} ({disk.serial}) has partitions ({', '.join(disk.partitions)}), so it is not Firn's. "
                "Nothing was formatted. Give this node another volume, or empty this one."
            )
        return disk.device

    def _attach(self, volume_id: str) -> None:
        """Attach the volume; wait for a machine that still has it. Raises: Refused, Unreachable, AwsError."""
        clock = self._machine.clock
        end_s = clock.monotonic_s() + VOLUME_WAIT_S
        told = ""
        while True:
            holder, state = self._holder_of(volume_id)
            if holder == self._instance_id and state in ("attached", "busy"):
                self._say(f"Volume {volume_id} is attached to this machine.")
                return
            if holder is None:
                try:
                    self._aws.query(
                        "ec2", "AttachVolume", VolumeId=volume_id, InstanceId=self._instance_id, Device=EBS_DEVICE_NAME
                    )
                except AwsError as error:
                    if error.code not in ("VolumeInUse", "IncorrectState", "IncorrectInstanceState"):
                        raise Refused(
                            f"EC2 does not attach volume {volume_id}: {error}. Check the role's policy. Nothing was formatted."
                        ) from error
            elif holder != self._instance_id and told != f"{holder} {state}":
                told = f"{holder} {state}"
                self._say(f"Volume {volume_id} is still with {holder} ({state}): waiting until EC2 releases it.")
            if clock.monotonic_s() >= end_s:
                raise Refused(
                    f"Volume {volume_id} is still with {holder or 'nobody'} after {VOLUME_WAIT_S:.0f} s. "
                    "Stop that machine, or detach the volume. Nothing was formatted."
                )
            self._pause()

    def _holder_of(self, volume_id: str) -> tuple[str | None, str]:
        """Which machine has the volume, and the state of the attachment."""
        try:
            answer = self._aws.query("ec2", "DescribeVolumes", **{"VolumeId.1": volume_id})
        except AwsError as error:
            raise Refused(
                f"EC2 does not describe volume {volume_id}: {error}. Check data.volume_id and the role's policy. "
                "Nothing was formatted."
            ) from error
        volume = answer.find("volumeSet/item")
        if volume is None:
            raise Refused(f"EC2 knows no volume {volume_id}. Nothing was formatted.")
        zone = volume.findtext("availabilityZone", "")
        if zone != self._settings.zone:
            raise Refused(
                f"Volume {volume_id} is in zone {zone}, and this machine in {self._settings.zone}: "
                "a volume cannot change its zone. Correct the subnets of the node's auto-scaling group. Nothing was formatted."
            )
        for attachment in volume.iterfind("attachmentSet/item"):
            state = attachment.findtext("status", "")
            if state != "detached":
                return attachment.findtext("instanceId", ""), state
        return None, volume.findtext("status", "")

    def _wait_for_disk(self, what: str, wanted: Any) -> Disk:
        clock = self._machine.clock
        end_s = clock.monotonic_s() + DEVICE_WAIT_S
        while True:
            found = [disk for disk in disks(self._machine) if wanted(disk)]
            if found:
                disk = found[0]
                others = f" {len(found) - 1} more are not used." if len(found) > 1 else ""
                self._say(f"{what[0].upper()}{what[1:]} is {disk.device}.{others}")
                return disk
            if clock.monotonic_s() >= end_s:
                seen = ", ".join(f"{one.name} ({one.serial or one.model or 'no name'})" for one in disks(self._machine))
                raise Refused(
                    f"There is no disk of {what} after {DEVICE_WAIT_S:.0f} s; this machine has {seen or 'none'}. "
                    "Use an instance type of the Nitro system, and for an instance store one that has NVMe."
                )
            self._pause()

    def make_file_system(self, device: str) -> None:
        """Format what is blank, accept what is Firn's, refuse everything else."""
        wanted = self._data.filesystem
        found = self._machine.run("blkid", "-p", "-o", "export", device)
        if found.code not in (0, 2):
            raise Refused(f"blkid cannot read {device}: {found.last_words}. Nothing was formatted.")
        if found.code == 0 or found.out.strip():
            says = dict(line.partition("=")[::2] for line in found.out.splitlines() if "=" in line)
            kind, label = says.get("TYPE") or says.get("PTTYPE") or "something", says.get("LABEL", "")
            if says.get("TYPE") not in ("ext4", "xfs") or label != LABEL:
                raise Refused(
                    f"Disk {device} holds {kind}"
                    + (f" with label {label}" if label else "")
                    + ", which Firn did not make. "
                    "Nothing was formatted. Give this node another volume, or empty this one."
                )
            if kind != wanted:
                self._say(f"Disk {device} has {kind} though {wanted} is asked for; it stays as it is.")
            return
        with self._machine.path(device).open("rb") as raw:
            if any(raw.read(BLANK_BYTES)):
                raise Refused(
                    f"Disk {device} has no file system, but is not blank either. Nothing was formatted. "
                    "Give this node another volume, or overwrite the first MiB of this one with zeros."
                )
        command = ("mkfs.xfs", "-q", "-L", LABEL) if wanted == "xfs" else ("mkfs.ext4", "-q", "-m", "0", "-L", LABEL)
        done = self._machine.run(*command, device)
        if done.code != 0:
            raise Refused(f"Disk {device} cannot be formatted: {done.last_words}")
        self._say(f"Disk {device} was blank and has a new {wanted} now.")

    def mount(self, device: str) -> None:
        """Mount the volume and hold its marker against the settings. What belongs to others is unmounted again."""
        place = "/var/lib/firn"
        folder = self._machine.path(place)
        folder.mkdir(parents=True, exist_ok=True)
        mounted = self._machine.mounted_from(place)
        if mounted is not None and mounted != device:
            raise Refused(f"{mounted} is mounted at {place}, where {device} belongs. Unmount it.")
        if mounted is None:
            done = self._machine.run("mount", "-o", "noatime,nodev,nosuid", device, place)
            if done.code != 0:
                raise Refused(f"Disk {device} cannot be mounted: {done.last_words}")
        try:
            new = self._check_marker(folder, device)
        except Refused:
            if mounted is None:
                self._machine.run("umount", place)
            raise
        self._ensure_user()
        data = folder / "data"
        data.mkdir(mode=0o750, exist_ok=True)
        self._machine.own(data, USER, USER)
        if new:
            _write(folder / MARKER, json.dumps(self._marker) + "\n", 0o644)
        self._say(f"Disk {device} is mounted at {place}" + (": it is new." if new else " with what it had."))

    @property
    def _marker(self) -> dict[str, object]:
        settings = self._settings
        return {
            "version": 1,
            "cluster": settings.cluster,
            "node_id": settings.node_id,
            "store": settings.store_url.name,
        }

    def _check_marker(self, folder: Path, device: str) -> bool:
        """Whether the volume is new. Raises: Refused."""
        try:
            text = (folder / MARKER).read_text()
        except FileNotFoundError:
            there = sorted(set(os.listdir(folder)) - {"lost+found", "data"})
            data = folder / "data"
            there += [f"data/{name}" for name in (os.listdir(data) if data.is_dir() else ())]
            if there:
                raise Refused(
                    f"Disk {device} has no {MARKER}, but {there[0]}: nobody knows whose data that is. Nothing was changed."
                ) from None
            return True
        try:
            says = json.loads(text)
        except ValueError:
            says = None
        if not isinstance(says, dict) or says.get("version") != 1:
            raise Refused(f"{MARKER} of disk {device} is damaged or of a newer version. Nothing was changed.")
        for name, mine in self._marker.items():
            if says.get(name) != mine:
                raise Refused(
                    f"Disk {device} belongs to node {says.get('node_id')} of cluster {says.get('cluster')} in "
                    f"{says.get('store')}, and this machine is node {self._settings.node_id} of {self._settings.cluster} "
                    f"in {self._settings.store_url.name}. "
                    "Nothing was changed."
                )
        return False

    # --- the program

    def install_release(self) -> Path:
        """The venv of the release, installed unless it is there. Returns its folder; ``/opt/firn/current`` points to it."""
        sha256, source = self._wheels()
        release = self._machine.path(f"/opt/firn/releases/{sha256}")
        complete = release / ".complete"
        if not complete.exists():
            if source is None:
                raise Refused(
                    f"Release {sha256[:12]}… is neither installed nor baked, and no wheelhouse was given. "
                    "Set wheelhouse in the launch template, or use the image that it was baked into."
                )
            begun_s = self._machine.clock.monotonic_s()
            install(self._machine, source, release)
            took_s = self._machine.clock.monotonic_s() - begun_s
            self._say(f"Release {sha256[:12]}… was installed in {took_s:.1f} s.")
        current = self._machine.path("/opt/firn/current")
        target = f"releases/{sha256}"
        if not (current.is_symlink() and os.readlink(current) == target):
            new = current.with_name("current.new")
            new.unlink(missing_ok=True)
            new.symlink_to(target)
            new.replace(current)
        self._say(f"Release {sha256[:12]}… is {complete.read_text().strip()}.")
        return release

    def _wheels(self) -> tuple[str, Path | None]:
        """SHA-256 of the wheelhouse, and the folder where it lies unpacked, if it does."""
        baked = self._machine.path("/opt/firn/baked")
        if self._settings.wheelhouse is not None:
            sha256 = self._settings.wheelhouse.sha256
            here = (baked / sha256, self._wheelhouse)
            return sha256, next((one for one in here if one is not None and (one / "wheels").is_dir()), None)
        found = sorted(one.name for one in baked.iterdir()) if baked.is_dir() else []
        if len(found) != 1 or not re.fullmatch(r"[0-9a-f]{64}", found[0]):
            raise Refused(
                f"wheelhouse is null, and /opt/firn/baked has {len(found)} releases instead of one. "
                "Use an image with a baked release, or name a wheelhouse in the launch template."
            )
        return found[0], baked / found[0]

    def install_units(self, release: Path) -> None:
        """Unit files and kernel settings of the release, the user, and that later boots begin with the same steps."""
        self._ensure_user()
        changed = False
        for unit in sorted((release / "systemd").glob("*.service")):
            changed |= _write(self._machine.path(f"/etc/systemd/system/{unit.name}"), unit.read_text(), 0o644)
        for conf in sorted((release / "systemd").glob("*.conf")):
            place = self._machine.path(f"/etc/sysctl.d/{conf.name}")
            _write(place, conf.read_text(), 0o644)
            done = self._machine.run("sysctl", "-q", "-p", str(place))
            if done.code != 0:
                self._say(f"Kernel settings were not all taken: {done.last_words}")
        if changed:
            self._systemctl("--no-reload", "enable", "firn-bootstrap.service")
            self._systemctl("daemon-reload")

    def _ensure_user(self) -> None:
        if self._machine.run("id", "-u", USER).code == 0:
            return
        command = ("useradd", "--system", "--user-group", "--no-create-home", "--home-dir", "/var/lib/firn")
        done = self._machine.run(*command, "--shell", "/usr/sbin/nologin", USER)
        if done.code != 0:
            raise Refused(f"User {USER} cannot be made: {done.last_words}")

    def write_settings(self) -> None:
        settings = self._settings
        environment = {"AWS_REGION": settings.region, "AWS_DEFAULT_REGION": settings.region}
        if "imds" in settings.endpoints:
            environment["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = settings.endpoints["imds"]
        if settings.role == "http":
            environment["FIRN_BOOTSTRAP"] = settings.broker["bootstrap.servers"]
            environment["FIRN_HTTP_ADDRESS"] = f"0.0.0.0:{settings.http_port}"
            flags = [
                f"{flag} {settings.broker[name]}"
                for name, flag in zip(
                    HTTP_SETTINGS[1:], ("--http-allowed-hosts", "--http-allowed-origins"), strict=True
                )
                if settings.broker.get(name)
            ]
            environment["FIRN_HTTP_FLAGS"] = " ".join(flags)
        else:
            text = properties_text(broker_settings(settings, self._instance_id))
            _write(self._machine.path("/etc/firn/firn.properties"), text, 0o640)
            self._machine.own(self._machine.path("/etc/firn/firn.properties"), "root", USER)
        lines = "".join(f"{name}={_quoted(value)}\n" for name, value in environment.items())
        _write(self._machine.path("/etc/firn/firn.env"), lines, 0o640)
        self._machine.own(self._machine.path("/etc/firn/firn.env"), "root", USER)

    # --- the node id

    def must_take_over(self, release: Path) -> bool:
        """Whether the broker is to be started with force: EC2 says that the machine is terminated which the cluster log names."""
        settings = self._settings
        place = self._firn(
            release, "cluster", "place", "--store", settings.store, "--node-id", str(settings.node_id), "--json"
        )
        if place.code not in (0, 4):
            raise Refused(f"The cluster log in {settings.store_url.name} cannot be read: {place.last_words}")
        found = json.loads(place.out)
        mine = self._own_directory()
        cluster_id = found.get("cluster_id")
        if mine and cluster_id and mine.get("cluster.id") not in (None, cluster_id):
            raise Refused(
                f"The data directory belongs to cluster {mine['cluster.id']}, and "
                f"{settings.store_url.name} holds cluster {cluster_id}. "
                "Correct store in the launch template. Nothing was changed."
            )
        registered, instance = found.get("directory_id"), str(found.get("instance_id") or "")
        if registered is None:
            self._say(f"Nobody is registered as node {settings.node_id} yet.")
            return False
        if mine.get("directory.id") == registered:
            self._say(
                f"Node {settings.node_id} is registered with this volume's directory {registered}: it goes on here."
            )
            return False
        state = self._state_of(instance)
        where = instance or "a machine without a name"
        what = f"Node {settings.node_id} is registered with another directory, {registered}, on {where}"
        if state == "terminated":
            self._say(f"{what}, which EC2 says is terminated: this machine takes over. {_LOSS}")
            return True
        self._say(f"{what} ({state}): without force; the broker starts once that one is silent and does not answer.")
        return False

    def _state_of(self, instance: str) -> str:
        """EC2's word on a machine. Only ``terminated`` is death."""
        if not re.fullmatch(r"i-[0-9a-f]{8,17}", instance):
            return "not known to EC2"
        try:
            answer = self._aws.query("ec2", "DescribeInstances", **{"InstanceId.1": instance})
        except (AwsError, Unreachable) as error:
            return f"EC2 does not say: {error}"
        for one in answer.iterfind("reservationSet/item/instancesSet/item"):
            if one.findtext("instanceId") == instance:
                return one.findtext("instanceState/name", "without a state")
        return "not found by EC2"

    def _own_directory(self) -> dict[str, str]:
        try:
            text = self._machine.path("/var/lib/firn/data/meta.properties").read_text()
        except FileNotFoundError:
            return {}
        lines = [line.replace("\\", "") for line in text.splitlines() if "=" in line and not line.startswith("#")]
        found = dict(line.partition("=")[::2] for line in lines)
        if "directory.id" in found:
            found["directory.id"] = _uuid_text(found["directory.id"])
        return found

    def examine(self, release: Path) -> None:
        done = self._firn(release, "doctor", "--config", "/etc/firn/firn.properties", "--json")
        try:
            failed = [one for one in json.loads(done.out)["checks"] if not one["passed"]]
        except (ValueError, KeyError, TypeError):
            raise Refused(f"firn doctor does not say what it found: {done.last_words}") from None
        if failed:
            text = "; ".join(f"{one['name']}: {one['detail']} ({one['mend']})" for one in failed)
            raise Refused(f"firn doctor says no: {text}")
        self._say("firn doctor found nothing wrong.")

    # --- the start

    def start(self, unit: str, *, force: bool) -> None:
        """Start the unit and wait until it serves. Force holds for this start alone."""
        order = self._machine.path("/run/firn-bootstrap/take-over.env")
        if force:
            order.parent.mkdir(parents=True, exist_ok=True)
            _write(order, "FIRN_TAKE_OVER=true\n", 0o644)
        try:
            self._systemctl("start", "--no-block", unit)
            self._wait_until_active(unit)
        finally:
            order.unlink(missing_ok=True)
        if self._settings.lifecycle is not None or self._settings.role == "broker":
            self._systemctl("start", "--no-block", "firn-agent.service")

    def _wait_until_active(self, unit: str) -> None:
        clock = self._machine.clock
        end_s = clock.monotonic_s() + START_WAIT_S
        told = ""
        while True:
            done = self._machine.run(
                "systemctl", "show", unit, "--property=ActiveState,SubState,Result,StatusText,ExecMainStatus,NRestarts"
            )
            says = dict(line.partition("=")[::2] for line in done.out.splitlines())
            state = says.get("ActiveState", "")
            if state == "active":
                return
            failed_for_good = state == "failed" or (state == "inactive" and says.get("Result") not in ("success", ""))
            if failed_for_good:
                raise Refused(
                    f"{unit} does not start: {says.get('Result')}, exit code {says.get('ExecMainStatus')}. See its journal."
                )
            text = says.get("StatusText", "")
            restarts = says.get("NRestarts", "0")
            news = text or (f"it was started {restarts} times more" if restarts != "0" else "")
            if news and news != told:
                told = news
                self._say(f"{unit} is not ready yet: {news}")
            if clock.monotonic_s() >= end_s:
                raise Refused(f"{unit} is not ready after {START_WAIT_S:.0f} s ({state}). See its journal.")
            self._pause(0.2)

    def say_where(self, release: Path) -> None:
        """Up to which offset the broker is back, by partition."""
        took_s = self._machine.clock.monotonic_s() - self._begun_s
        ready = f"{self._who()[0].upper()}{self._who()[1:]} serves {took_s:.1f} s after the boot began"
        done = self._firn(release, "tier", "status", "--json", "--bootstrap", f"127.0.0.1:{KAFKA_PORT}")
        try:
            rows = json.loads(done.out)
            ends = [(row["topic"], row["partition"], row["log_end_offset"]) for row in rows]
            named = [f"{topic}-{partition} up to {end}" for topic, partition, end in ends if end > 0]
        except (ValueError, KeyError, TypeError):
            self._say(f"{ready}. Its offsets are not known: {done.last_words}")
            return
        more = f" and {len(named) - PARTITIONS_NAMED_MAX} more" if len(named) > PARTITIONS_NAMED_MAX else ""
        what = ", ".join(named[:PARTITIONS_NAMED_MAX]) + more if named else "no records"
        self._say(f"{ready}: {what}.")

    def wait_until_healthy(self) -> None:
        """HTTP counts as started when it answers. Whether a broker answers it is another question, and none of this machine."""
        clock = self._machine.clock
        end_s = clock.monotonic_s() + HEALTHY_WAIT_S
        url = f"http://127.0.0.1:{self._settings.http_port}/healthz"
        while True:
            try:
                what = f"status {self._http.exchange('GET', url, {}, b'', 5.0).status}"
            except OSError as error:
                what = str(error)
            if what == "status 200":
                self._say(f"HTTP serves on port {self._settings.http_port}.")
                return
            if clock.monotonic_s() >= end_s:
                raise Refused(
                    f"HTTP does not answer on port {self._settings.http_port} ({what}). See the journal of firn-http.service."
                )
            self._pause(0.5)

    def complete_launch(self) -> None:
        """Tell the auto-scaling group that this machine is in service."""
        lifecycle = self._settings.lifecycle
        if lifecycle is None or not lifecycle.launch_hook:
            return
        try:
            self._aws.query("autoscaling", "CompleteLifecycleAction", **self._hook, LifecycleActionResult="CONTINUE")
        except AwsError as error:
            # A machine that was rebooted, or put into service by hand, has no action under way.
            self._say(f"Auto Scaling takes no word about hook {lifecycle.launch_hook}: {error}")
            return
        self._say(f"Hook {lifecycle.launch_hook} is complete.")

    @property
    def _hook(self) -> dict[str, str]:
        assert self._settings.lifecycle is not None
        return {
            "AutoScalingGroupName": self._settings.lifecycle.autoscaling_group,
            "LifecycleHookName": self._settings.lifecycle.launch_hook,
            "InstanceId": self._instance_id,
        }

    # --- small things

    @property
    def _data(self) -> Data:
        assert self._settings.data is not None, "a broker has a data volume"
        return self._settings.data

    def _who(self) -> str:
        return f"node {self._settings.node_id}" if self._settings.role == "broker" else "HTTP"

    def _say(self, text: str) -> None:
        self._machine.say(text)

    def _firn(self, release: Path, *arguments: str) -> Done:
        environment = {"AWS_REGION": self._settings.region, "AWS_DEFAULT_REGION": self._settings.region}
        if "imds" in self._settings.endpoints:
            environment["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = self._settings.endpoints["imds"]
        return self._machine.run(str(release / "bin" / "firn"), *arguments, user=USER, environment=environment)

    def _systemctl(self, *arguments: str) -> None:
        done = self._machine.run("systemctl", *arguments)
        if done.code != 0:
            raise Refused(f"systemctl {' '.join(arguments)} failed: {done.last_words}")

    def _pause(self, seconds: float = POLL_S) -> None:
        """Wait a little, and tell the auto-scaling group now and then that this machine still works on it."""
        self._machine.clock.sleep(seconds)
        self._beat()

    def _beat(self) -> None:
        now_s = self._machine.clock.monotonic_s()
        lifecycle = self._settings.lifecycle
        if lifecycle is None or not lifecycle.launch_hook or now_s - self._beat_s < lifecycle.heartbeat_s:
            return
        self._beat_s = now_s
        try:
            self._aws.query("autoscaling", "RecordLifecycleActionHeartbeat", **self._hook)
        except (AwsError, Unreachable) as error:
            self._say(f"Auto Scaling takes no heartbeat of hook {lifecycle.launch_hook}: {error}")


def broker_settings(settings: Settings, instance_id: str) -> dict[str, str]:
    """What is in ``firn.properties``: the broker's settings by their own names."""
    host = f"[{settings.advertised_host}]" if ":" in settings.advertised_host else settings.advertised_host
    return {
        **settings.broker,
        "node.id": str(settings.node_id),
        "broker.rack": settings.zone,
        "log.dirs": "/var/lib/firn/data",
        "firn.store.url": settings.store,
        "listeners": f"PLAINTEXT://0.0.0.0:{KAFKA_PORT}",
        "advertised.listeners": f"PLAINTEXT://{host}:{settings.advertised_port}",
        "firn.http.listen": f"0.0.0.0:{settings.http_port}" if settings.http_enabled else "off",
        "firn.instance.id": instance_id,
    }


def properties_text(values: Mapping[str, str]) -> str:
    """A Java properties file of these values."""
    return "# Written at every boot from the launch template. Change it there.\n" + "".join(
        f"{_escaped(name, ' =:#!')}={_escaped(value, '')}\n" for name, value in sorted(values.items())
    )


def _escaped(text: str, special: str) -> str:
    out = []
    for at, char in enumerate(text):
        if char == "\t":
            out.append("\\t")
        elif char == "\\" or char in special or (char == " " and at == 0):
            out.append("\\" + char)
        elif not " " <= char <= "~":
            out.append("".join(f"\\u{int.from_bytes(pair, 'big'):04x}" for pair in _utf16(char)))
        else:
            out.append(char)
    return "".join(out)


def _utf16(char: str) -> list[bytes]:
    raw = char.encode("utf-16-be")
    return [raw[at : at + 2] for at in range(0, len(raw), 2)]


def _uuid_text(text: str) -> str:
    """Kafka's form of a UUID (22 characters of base64) in the usual one. Raises: Refused."""
    try:
        return str(uuid.UUID(bytes=base64.urlsafe_b64decode(text + "==")))
    except ValueError as error:
        raise Refused(f"meta.properties of the data directory is damaged: {text!r} is no directory id.") from error


def _quoted(value: str) -> str:
    """For an environment file of systemd."""
    return '"' + re.sub(r'(["\\`$])', r"\\\1", value) + '"'


def _write(path: Path, text: str, mode: int) -> bool:
    """Put a file in place whole, unless it is there already. Returns whether it was changed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        if path.read_text() == text:
            return False
    except FileNotFoundError:
        pass
    new = path.with_name(path.name + ".new")
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "w") as out:
        out.write(text)
        out.flush()
        os.fchmod(out.fileno(), mode)
        os.fsync(out.fileno())
    new.replace(path)
    return True


# --- releases ----------------------------------------------------------------------------------------------------


def install(machine: Machine, wheelhouse: Path, release: Path) -> None:
    """Make the venv of a release from an unpacked wheelhouse. One that was not finished is begun anew. Raises: Refused, OSError."""
    if release.exists():
        shutil.rmtree(release)
    release.parent.mkdir(parents=True, exist_ok=True)
    pip = (str(release / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "--no-cache-dir", "install")
    steps = (
        ("/usr/bin/python3", "-m", "venv", str(release)),
        (
            *pip,
            "--quiet",
            "--no-index",
            "--find-links",
            str(wheelhouse / "wheels"),
            "--require-hashes",
            "-r",
            str(wheelhouse / "requirements.txt"),
        ),
    )
    for step in steps:
        done = machine.run(*step)
        if done.code != 0:
            raise Refused(f"The release cannot be installed: {done.last_words}")
    for folder in ("bootstrap", "systemd"):
        shutil.copytree(wheelhouse / folder, release / folder, ignore=shutil.ignore_patterns("__pycache__"))
    version = machine.run(str(release / "bin" / "firn"), "--version")
    if version.code != 0:
        raise Refused(f"The release does not run: {version.last_words}")
    _write(release / ".complete", version.out, 0o644)


def unpack(archive: Path, target: Path) -> None:
    """Unpack a wheelhouse: files and folders below ``target`` and nothing else. Raises: Refused, OSError, tarfile.TarError."""
    with tarfile.open(archive, "r:gz") as tar:
        members = tar.getmembers()
        for one in members:
            if not (one.isfile() or one.isdir()) or one.name.startswith("/") or ".." in one.name.split("/"):
                raise Refused(f"The wheelhouse has the entry {one.name!r}, which is no file below it.")
        tar.extractall(target, members)


def bake(machine: Machine, archive: Path) -> str:
    """Put a wheelhouse and its release into an image, so that no boot downloads or installs. Returns its SHA-256."""
    import hashlib

    with archive.open("rb") as raw:
        sha256 = hashlib.file_digest(raw, "sha256").hexdigest()
    place = machine.path(f"/opt/firn/baked/{sha256}")
    if not place.exists():
        new = place.with_name(sha256 + ".new")
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir(parents=True)
        unpack(archive, new)
        new.replace(place)
    release = machine.path(f"/opt/firn/releases/{sha256}")
    if not (release / ".complete").exists():
        install(machine, place, release)
    return sha256


# --- the command -------------------------------------------------------------------------------------------------


def boot(settings_path: Path, wheelhouse: Path | None, machine: Machine) -> int:
    """Everything, with one line for whatever stops it. Returns the exit code."""
    lock_path = machine.path("/run/firn-bootstrap.lock")
    lock_path.parent.mkdir(parents=True, exist_ok=True)
    with lock_path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            machine.say("Another boot of Firn is under way on this machine.", failed=True)
            return 1
        try:
            settings = parse_settings(settings_path.read_text())
            http = UrllibHttp()
            metadata = Metadata(http, machine.clock, settings.endpoints.get("imds", METADATA))
            aws = Aws(http, machine.clock, metadata, settings.region, settings.endpoints)
            Boot(settings, machine, http, metadata, aws, wheelhouse).run()
        except Refused as error:
            machine.say(f"Firn does not start: {error}", failed=True)
            return 1
        except (Unreachable, AwsError, OSError, tarfile.TarError) as error:
            machine.say(f"Firn does not start: {type(error).__name__}: {error}", failed=True)
            return 1
    return 0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="firn_bootstrap", description="Bring this machine from its boot to a broker that serves."
    )
    parser.add_argument("--settings", type=Path, default=Path(SETTINGS), help="bootstrap.json of the launch template")
    parser.add_argument(
        "--wheelhouse", type=Path, help="an unpacked wheelhouse, for a release that is not installed yet"
    )
    parser.add_argument("--bake", type=Path, metavar="ARCHIVE", help="install this wheelhouse into an image, and end")
    options = parser.parse_args(arguments)
    machine = Machine()
    if options.bake is None:
        return boot(options.settings, options.wheelhouse, machine)
    try:
        machine.say(f"Release {bake(machine, options.bake)} is baked.")
    except (Refused, OSError, tarfile.TarError) as error:
        machine.say(f"The image is not complete: {error}", failed=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
