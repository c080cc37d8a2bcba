"""From a machine that has just booted to a broker that serves: settings, volume, release, node id, start.

    python3 firn_bootstrap.py --settings /etc/firn/bootstrap.json [--wheelhouse DIR] [--secret]

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
import sys
import tarfile
import threading
import traceback
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from firn_aws import METADATA, Aws, AwsError, Http, Metadata, Unreachable, UrllibHttp
from firn_keys import MachineKeys
from firn_machine import (
    USER,
    Commands,
    Disk,
    Done,
    Machine,
    bake,
    disks,
    install,
    properties_text,
    write_units,
    write_whole,
)
from firn_security import HTTP_CLIENT, OWN_CLIENT, secured
from firn_settings import AUTO, DRAIN_S_MAX, HTTP_SETTINGS, SETTINGS, Data, Refused, Settings, read_settings

KAFKA_PORT: Final = 9092
"""Where a broker listens. What clients connect to is ``advertised``, which a load balancer may forward from another port."""
LABEL: Final = "firn"
"""Label of the file system of every data volume."""
MARKER: Final = "volume.json"
"""In the root of a data volume: which node of which cluster it belongs to."""
ENABLED: Final = "/etc/systemd/system/multi-user.target.wants/firn-bootstrap.service"
"""There if later boots begin with the same steps."""
BLANK_BYTES: Final = 1 << 20
"""A disk whose first bytes are zeros, and in which blkid finds nothing, is blank."""
EBS_MODEL: Final = "Amazon Elastic Block Store"
INSTANCE_STORE_MODEL: Final = "Amazon EC2 NVMe Instance Storage"
EBS_DEVICE_NAME: Final = "/dev/sdf"
"""What AttachVolume wants to hear. The kernel names the device otherwise; its serial number finds it."""
VOLUME_WAIT_S: Final = DRAIN_S_MAX + 300.0
"""How long another machine may keep the volume. It may drain as long as its group holds it, and shuts down then."""
DEVICE_WAIT_S: Final = 120.0
DEVICES_SETTLE_S: Final = 2.0
"""How long the machine's disks must stay the same before one that is blank counts as the right one."""
START_WAIT_S: Final = 3600.0
"""How long a broker may take until it serves: it may have to wait until the old one counts as silent, and to recover."""
HEALTHY_WAIT_S: Final = 120.0
COMPLETE_WAIT_S: Final = 7200.0
"""The longest time-out that a launch hook can have: after it the hook has ended in any case."""
POLL_S: Final = 1.0
"""Between two looks at what takes long. The first looks come sooner: what AWS does at once is not waited for."""
FIRST_POLL_S: Final = 0.1
PARTITIONS_NAMED_MAX: Final = 20

_LOSS: Final = (
    "What that machine had not uploaded is lost, unless other brokers have replicas of it: last records, committed offsets, "
    "transactional ids, compacted topics."
)


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
        self._address = ""
        """Of this machine in its network, or its name if there is TLS; asked for only if others are told it."""
        self._keys = MachineKeys(settings, machine, aws, self._firn)
        self._rack = settings.zone
        self._beat_s = machine.clock.monotonic_s()
        self._begun_s = self._beat_s
        self._launched = False
        """Whether Auto Scaling has said that this machine is not being launched."""
        self._installation: _Beside | None = None
        self._commands: Commands | None = None

    def run(self) -> None:
        """Raises: Refused, Unreachable, AwsError, OSError. ``close`` must follow."""
        self.check_place()
        if self._settings.role == "broker":
            self.check_bucket()
            self._keys.read()
        release = self.begin_release()
        if self._settings.role == "broker":
            if self._data.kind == "root":
                self.use_root_disk()
            else:
                device = self.find_disk()
                self.make_file_system(device)
                self.mount(device)
            self.claim_bucket()
        self.finish_release(release)
        self.install_units(release)
        self.write_keys()
        self.write_settings()
        if self._settings.role == "broker":
            self._keys.leave_users()
            unit = "firn.service"
            force = not self._settings.without_disk and self.must_take_over()
            self.examine()
            self._end_commands()
        else:
            unit, force = "firn-http.service", False
        self.start(unit, force=force)
        if self._settings.role == "broker":
            self._keys.let_metrics_be_read()
            self.say_where()
        else:
            self.wait_until_healthy()
        self.complete_launch()

    def close(self) -> None:
        """Wait for the end of what goes on beside the steps. A boot that was refused leaves no half of a release behind."""
        if self._installation is not None:
            self._installation.wait()
        self._end_commands()

    # --- before anything is touched

    def check_place(self) -> None:
        self._instance_id = self._metadata.need("meta-data/instance-id")
        zone = self._metadata.need("meta-data/placement/availability-zone")
        if self._settings.without_disk:
            if not zone.startswith(self._settings.region):
                raise Refused(
                    f"This machine is in zone {zone}, and the launch template is for {self._settings.region}."
                )
            # The id of a zone means the same zone in every account, and its name does not: clients may be in another account.
            self._rack = self._metadata.need("meta-data/placement/availability-zone-id")
        elif zone != self._settings.zone:
            raise Refused(
                f"This machine is in zone {zone}. Node {self._settings.node_id} belongs in zone {self._settings.zone}: "
                "correct the subnets of its auto-scaling group."
            )
        if self._settings.own_address and self._settings.security is None:
            self._address = self._metadata.need("meta-data/local-ipv4")
        if self._settings.security is not None and self._settings.role == "broker":
            # Certificates have names: one with a star is for all machines, and no certificate could have the address of each.
            self._address = self._keys.host = self._metadata.need("meta-data/local-hostname")
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
                f"The store {store.name} belongs to cluster {cluster}; this machine belongs to {self._settings.cluster}. "
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

    def use_root_disk(self) -> None:
        """The data directory of a broker without a disk that matters lies on the machine's own root.

        The folder is bound to itself: `firn.service` starts over a mount point only, so that no other broker gets there by mistake.
        """
        place = "/var/lib/firn"
        folder = self._machine.path(place)
        folder.mkdir(parents=True, exist_ok=True)
        if self._machine.mounted_from(place) is None:
            done = self._machine.run("mount", "--bind", place, place)
            if done.code != 0:
                raise Refused(f"{place} cannot be bound to itself: {done.last_words}.")
        self._own_data(folder)
        self._say(f"The data directory is on the root disk, at {place}: it may be lost with this machine.")

    def find_disk(self) -> str:
        data = self._data
        if data.kind == "ebs":
            self._attach(data.volume_id)
            serial = data.volume_id.replace("-", "")
            [disk, *_] = self._wait_for_disks(f"volume {data.volume_id}", lambda one: one.serial == serial)
            self._say(f"Volume {data.volume_id} is {disk.device}.")
        else:
            disk = self._find_instance_store()
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
        waits = _waits()
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
                    waits = _waits()
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
            self._pause(next(waits))

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

    def _find_instance_store(self) -> Disk:
        """The instance store that Firn has formatted, else the one with the lowest serial number.

        Names say nothing: the kernel gives them anew at each boot.
        """
        found: list[Disk] = []
        ours: list[Disk] = []
        while not ours:
            before = found
            found = self._wait_for_disks("an instance store", lambda one: one.model == INSTANCE_STORE_MODEL)
            ours = [disk for disk in found if _is_ours(self._probe(disk.device))]
            if found == before:
                break
            if not ours:
                self._pause(DEVICES_SETTLE_S)  # the one with the data may come last
        if len(ours) > 1:
            raise Refused(
                f"Disks {' and '.join(disk.device for disk in ours)} both have the label {LABEL}, and only one of them has this "
                "node's data. Nothing was formatted. Wipe the other one (wipefs), or stop the machine and start it: it gets blank "
                "ones."
            )
        disk = min(ours or found, key=lambda one: (one.serial, one.name))
        others = f" {len(found) - 1} more are not used." if len(found) > 1 else ""
        self._say(f"An instance store is {disk.device} ({disk.serial}).{others}")
        return disk

    def _wait_for_disks(self, what: str, wanted: Callable[[Disk], bool]) -> list[Disk]:
        clock = self._machine.clock
        end_s = clock.monotonic_s() + DEVICE_WAIT_S
        waits = _waits()
        while True:
            found = [disk for disk in disks(self._machine) if wanted(disk)]
            if found:
                return found
            if clock.monotonic_s() >= end_s:
                seen = ", ".join(f"{one.name} ({one.serial or one.model or 'no name'})" for one in disks(self._machine))
                raise Refused(
                    f"There is no disk of {what} after {DEVICE_WAIT_S:.0f} s; this machine has {seen or 'none'}. "
                    "Use an instance type of the Nitro system, and for an instance store one that has NVMe."
                )
            self._pause(next(waits))

    def make_file_system(self, device: str) -> None:
        """Format what is blank, accept what is Firn's, refuse everything else."""
        wanted = self._data.filesystem
        says = self._probe(device)
        if says is not None:
            kind, label = says.get("TYPE") or says.get("PTTYPE") or "something", says.get("LABEL", "")
            if not _is_ours(says):
                raise Refused(
                    f"Disk {device} holds {kind}"
                    + (f" with label {label}" if label else "")
                    + ", which Firn did not make. "
                    "Nothing was formatted. Give this node another volume, or empty this one."
                )
            if kind != wanted:
                self._say(f"Disk {device} has {kind}, and the settings name {wanted}. The disk stays as it is.")
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
            raise Refused(f"Disk {device} cannot be formatted: {done.last_words}.")
        self._say(f"Disk {device} was blank and has a new {wanted} now.")

    def _probe(self, device: str) -> dict[str, str] | None:
        """What blkid finds on a disk; None if it finds nothing. Raises: Refused."""
        found = self._machine.run("blkid", "-p", "-o", "export", device)
        if found.code not in (0, 2):
            raise Refused(f"blkid cannot read {device}: {found.last_words}. Nothing was formatted.")
        if found.code == 2 and not found.out.strip():
            return None
        return dict(line.partition("=")[::2] for line in found.out.splitlines() if "=" in line)

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
                raise Refused(f"Disk {device} cannot be mounted: {done.last_words}.")
        try:
            new = self._check_marker(folder, device)
        except Refused:
            if mounted is None:
                self._machine.run("umount", place)
            raise
        self._own_data(folder)
        if new:
            write_whole(folder / MARKER, json.dumps(self._marker) + "\n", 0o644)
        self._say(f"Disk {device} is mounted at {place}" + (": it is new." if new else " with what it had."))

    def _own_data(self, folder: Path) -> None:
        self._ensure_user()
        data = folder / "data"
        data.mkdir(mode=0o750, exist_ok=True)
        self._own_what_another_image_owned(data)
        self._machine.own(data, USER, USER)

    def _own_what_another_image_owned(self, data: Path) -> None:
        """Each image numbers its system users itself, and files have only the number.

        The folder itself is given last, by the caller: as long as it has the old number, the rest may have it too.
        """
        mine = self._machine.run("id", "-u", USER).out.strip()
        theirs = str(data.stat().st_uid)
        inside = [str(data / name) for name in sorted(os.listdir(data))]
        if not mine.isdigit() or mine == theirs or not inside:
            return
        done = self._machine.run("chown", "-R", "--", f"{USER}:{USER}", *inside)
        if done.code != 0:
            raise Refused(f"The data cannot be given to user {USER}: {done.last_words}.")
        self._say(f"The data belonged to user {theirs} of another image; it belongs to {USER} ({mine}) now.")

    @property
    def _marker(self) -> dict[str, object]:
        settings = self._settings
        return {
            "version": 1,
            "cluster": settings.cluster,
            "node_id": AUTO if settings.without_disk else settings.node_id,
            "store": settings.store_url.name,
        }

    def _check_marker(self, folder: Path, device: str) -> bool:
        """Whether the volume is new. Raises: Refused."""
        try:
            raw = (folder / MARKER).read_bytes()
        except FileNotFoundError:
            there = sorted(set(os.listdir(folder)) - {"lost+found", "data"})
            data = folder / "data"
            there += [f"data/{name}" for name in (os.listdir(data) if data.is_dir() else ())]
            if there:
                raise Refused(
                    f"Disk {device} has no {MARKER}, but holds {there[0]}. Whose data that is cannot be told. Nothing was changed."
                ) from None
            return True
        try:
            says = json.loads(raw)
        except ValueError:
            says = None
        if not isinstance(says, dict) or says.get("version") != 1:
            raise Refused(f"{MARKER} of disk {device} is damaged or of a newer version. Nothing was changed.")
        for name, mine in self._marker.items():
            if says.get(name) != mine:
                raise Refused(
                    f"Disk {device} belongs to node {says.get('node_id')} of cluster {says.get('cluster')} in "
                    f"{says.get('store')}. This machine is node {self._settings.node_id} of {self._settings.cluster} "
                    f"in {self._settings.store_url.name}. "
                    "Nothing was changed."
                )
        return False

    # --- the program

    def begin_release(self) -> Path:
        """Begin to install the release unless it is there, beside the work on the disk. Returns its folder."""
        sha256, source = self._wheels()
        release = self._machine.path(f"/opt/firn/releases/{sha256}")
        if (release / ".complete").exists():
            if self._settings.role == "broker":
                self._begin_commands(release)
            return release
        if source is None:
            raise Refused(
                f"Release {sha256[:12]}… is neither installed nor baked, and no wheelhouse was given. "
                "Set wheelhouse in the launch template, or use the image that it was baked into."
            )
        self._installation = _Beside(lambda: self._install(source, release))
        return release

    def _install(self, source: Path, release: Path) -> None:
        begun_s = self._machine.clock.monotonic_s()
        install(self._machine, source, release)
        took_s = self._machine.clock.monotonic_s() - begun_s
        self._say(f"Release {release.name[:12]}… was installed in {took_s:.1f} s.")

    def finish_release(self, release: Path) -> None:
        """Wait until the release is installed, and make ``/opt/firn/current`` point to it. Raises: Refused, OSError."""
        if self._installation is not None:
            while not self._installation.wait(FIRST_POLL_S):
                self._beat()
            self._installation.check()
            self._beat()
        if self._commands is None and self._settings.role == "broker":
            self._begin_commands(release)
        current = self._machine.path("/opt/firn/current")
        target = f"releases/{release.name}"
        if not (current.is_symlink() and os.readlink(current) == target):
            new = current.with_name("current.new")
            new.unlink(missing_ok=True)
            new.symlink_to(target)
            new.replace(current)
        self._say(f"Release {release.name[:12]}… is {(release / '.complete').read_text().strip()}.")

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
                f"The wheelhouse is null, and /opt/firn/baked has {len(found)} releases instead of one. "
                "Use an image with a baked release, or name a wheelhouse in the launch template."
            )
        return found[0], baked / found[0]

    def install_units(self, release: Path) -> None:
        """Unit files and kernel settings of the release, the user, and that later boots begin with the same steps."""
        self._ensure_user()
        changed, kernel = write_units(self._machine, release)
        for conf in kernel:
            done = self._machine.run("sysctl", "-q", "-p", str(conf))
            if done.code != 0:
                self._say(f"Kernel settings were not all taken: {done.last_words}")
        if not os.path.lexists(self._machine.path(ENABLED)):
            self._systemctl("--no-reload", "enable", "firn-bootstrap.service")
        if changed:
            self._systemctl("daemon-reload")

    def _ensure_user(self) -> None:
        if self._machine.run("id", "-u", USER).code == 0:
            return
        command = ("useradd", "--system", "--user-group", "--no-create-home", "--home-dir", "/var/lib/firn")
        done = self._machine.run(*command, "--shell", "/usr/sbin/nologin", USER)
        if done.code != 0:
            raise Refused(f"User {USER} cannot be made: {done.last_words}.")

    def write_keys(self) -> None:
        def show(*arguments: str) -> Done:
            assert self._commands is not None, "finish_release has begun them"
            return self._commands.run(*arguments)

        self._keys.write(show)

    def refresh(self) -> None:
        """Put a changed secret in force while the broker serves. Raises: Refused, AwsError, Unreachable, OSError."""
        if self._settings.security is not None and self._settings.role == "broker":
            self._keys.host = self._metadata.need("meta-data/local-hostname")
            self._keys.refresh()

    def write_settings(self) -> None:
        settings = self._settings
        environment = self._environment
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
            if settings.security is not None:
                environment["FIRN_CLIENT_CONFIG"] = HTTP_CLIENT
                flags.append("--plain-credentials")  # the load balancer in front encrypts
            environment["FIRN_HTTP_FLAGS"] = " ".join(flags)
        else:
            told = broker_settings(settings, self._instance_id, address=self._address, rack=self._rack)
            if self._keys.secret is not None:
                told = secured(told, self._keys.secret, self._keys.principal, self._keys.host, KAFKA_PORT)
            text = properties_text(told)
            write_whole(self._machine.path("/etc/firn/firn.properties"), text, 0o640)
            self._machine.own(self._machine.path("/etc/firn/firn.properties"), "root", USER)
        lines = "".join(f"{name}={_quoted(value)}\n" for name, value in environment.items())
        write_whole(self._machine.path("/etc/firn/firn.env"), lines, 0o640)
        self._machine.own(self._machine.path("/etc/firn/firn.env"), "root", USER)

    # --- the node id

    def must_take_over(self) -> bool:
        """Whether the broker is to be started with force: EC2 says that the machine is terminated which the cluster log names."""
        settings = self._settings
        assert self._commands is not None, "finish_release has begun them"
        place = self._commands.run(
            "cluster", "place", "--store", settings.store, "--node-id", str(settings.node_id), "--json"
        )
        if place.code not in (0, 4):
            raise Refused(f"The cluster log in {settings.store_url.name} cannot be read: {place.last_words}.")
        found = _json_object(place.out)
        if found is None:
            raise Refused(f"`firn cluster place` prints no JSON object that can be read: {place.last_words}.")
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
        self._say(
            f"{what} ({state}): without force, the broker starts once that machine is silent and does not answer."
        )
        return False

    def _state_of(self, instance: str) -> str:
        """What EC2 says of a machine. Only ``terminated`` means that it is gone for good."""
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
            text = self._machine.path("/var/lib/firn/data/meta.properties").read_text(errors="replace")
        except FileNotFoundError:
            return {}
        lines = [line.replace("\\", "") for line in text.splitlines() if "=" in line and not line.startswith("#")]
        found = dict(line.partition("=")[::2] for line in lines)
        if "directory.id" in found:
            found["directory.id"] = _uuid_text(found["directory.id"])
        return found

    def examine(self) -> None:
        # Each partition costs some requests. The broker looks at them anyway, and one that is damaged is no reason not to start.
        flags = ("--config", "/etc/firn/firn.properties", "--without-partitions", "--json")
        assert self._commands is not None, "finish_release has begun them"
        done = self._commands.run("doctor", *flags)
        try:
            failed = [one for one in json.loads(done.out)["checks"] if not one["passed"]]
        except (ValueError, KeyError, TypeError):
            raise Refused(f"firn doctor printed no result that can be read: {done.last_words}.") from None
        if failed:
            text = "; ".join(f"{one['name']}: {one['detail']} ({one['mend']})" for one in failed)
            raise Refused(f"firn doctor found what stops a start: {text}.")
        self._say("firn doctor found nothing wrong.")

    # --- the start

    def start(self, unit: str, *, force: bool) -> None:
        """Start the unit and wait until it serves. Force applies to this start only."""
        order = self._machine.path("/run/firn-bootstrap/take-over.env")
        if force:
            order.parent.mkdir(parents=True, exist_ok=True)
            write_whole(order, "FIRN_TAKE_OVER=true\n", 0o644)
        try:
            self._systemctl("start", "--no-block", unit)
            self._wait_until_active(unit)
        finally:
            order.unlink(missing_ok=True)
        if self._settings.lifecycle is not None or self._settings.role == "broker":
            self._systemctl("start", "--no-block", "firn-agent.service")
        if self._keys.secret is not None:
            self._systemctl("start", "--no-block", "firn-secret.timer")

    def _wait_until_active(self, unit: str) -> None:
        clock = self._machine.clock
        end_s = clock.monotonic_s() + START_WAIT_S
        told = ""
        while True:
            done = self._machine.run(
                "systemctl",
                "show",
                unit,
                "--property=ActiveState,Result,AssertResult,AssertTimestampMonotonic,StatusText,ExecMainStatus,NRestarts",
            )
            says = dict(line.partition("=")[::2] for line in done.out.splitlines())
            state = says.get("ActiveState", "")
            if state == "active":
                return
            if says.get("AssertResult") == "no" and says.get("AssertTimestampMonotonic", "0") != "0":
                raise Refused(f"{unit} does not start: a condition in its unit file does not hold. See its journal.")
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

    def say_where(self) -> None:
        """Up to which offset the broker is back, by partition."""
        took_s = self._machine.clock.monotonic_s() - self._begun_s
        ready = f"{self._who()[0].upper()}{self._who()[1:]} serves {took_s:.1f} s after the boot began"
        # By its directory or its own name: nobody reaches it yet by the address that a load balancer will serve.
        done = self._firn("tier", "status", "--json", *self._keys.of_broker)
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
        """HTTP counts as started when it answers, whether or not a broker answers HTTP."""
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
        """Tell the auto-scaling group that this machine is in service.

        The machine serves by now. A request without a response is sent again until the hook's time-out has ended it.
        """
        lifecycle = self._settings.lifecycle
        if lifecycle is None or not lifecycle.launch_hook:
            return
        clock = self._machine.clock
        end_s = clock.monotonic_s() + COMPLETE_WAIT_S
        told = False
        while True:
            try:
                self._aws.query(
                    "autoscaling", "CompleteLifecycleAction", **self._hook, LifecycleActionResult="CONTINUE"
                )
            except AwsError as error:
                # A machine that was rebooted, or put into service by hand, has no action under way.
                self._say(f"Auto Scaling refuses to complete hook {lifecycle.launch_hook}: {error}")
                return
            except Unreachable as error:
                late = clock.monotonic_s() >= end_s
                if late or not told:
                    more = "The time-out of the hook decides now" if late else "It is asked again"
                    self._say(
                        f"Auto Scaling does not respond to the end of hook {lifecycle.launch_hook}: {error}. {more}."
                    )
                if late:
                    return
                told = True
                clock.sleep(POLL_S)
            else:
                self._say(f"Hook {lifecycle.launch_hook} is complete.")
                return

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
        if self._settings.without_disk:
            return "a broker without a disk"
        return f"node {self._settings.node_id}" if self._settings.role == "broker" else "HTTP"

    def _say(self, text: str) -> None:
        self._machine.say(text)

    def _firn(self, *arguments: str, **more: str) -> Done:
        """Run a command of the release, with ``more`` in its environment."""
        program = str(self._machine.path("/opt/firn/current/bin/firn"))
        own = {} if self._keys.secret is None else {"FIRN_CLIENT_CONFIG": OWN_CLIENT}
        return self._machine.run(program, *arguments, user=USER, environment=self._environment | own | more)

    def _begin_commands(self, release: Path) -> None:
        """Begin the process that asks for the node's place and examines the machine: its imports take as long as a disk."""
        self._ensure_user()
        self._commands = self._machine.commands(release, USER, self._environment)

    def _end_commands(self) -> None:
        if self._commands is not None:
            self._commands.close()
            self._commands = None

    @property
    def _environment(self) -> dict[str, str]:
        environment = {"AWS_REGION": self._settings.region, "AWS_DEFAULT_REGION": self._settings.region}
        if "imds" in self._settings.endpoints:
            environment["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = self._settings.endpoints["imds"]
        return environment

    def _systemctl(self, *arguments: str) -> None:
        done = self._machine.run("systemctl", *arguments)
        if done.code != 0:
            raise Refused(f"systemctl {' '.join(arguments)} failed: {done.last_words}.")

    def _pause(self, seconds: float) -> None:
        """Wait a little, and tell the auto-scaling group now and then that this machine still works on it.

        Raises: Refused, OSError if the release cannot be installed meanwhile.
        """
        self._machine.clock.sleep(seconds)
        self._beat()
        if self._installation is not None:
            self._installation.check()

    def _beat(self) -> None:
        now_s = self._machine.clock.monotonic_s()
        lifecycle = self._settings.lifecycle
        if lifecycle is None or not lifecycle.launch_hook or self._launched:
            return
        if now_s - self._beat_s < lifecycle.heartbeat_s:
            return
        self._beat_s = now_s
        try:
            self._aws.query("autoscaling", "RecordLifecycleActionHeartbeat", **self._hook)
        except AwsError as error:
            self._launched = True  # a later boot: no launch is under way
            self._say(f"Auto Scaling did not take the heartbeat of hook {lifecycle.launch_hook}: {error}")
        except Unreachable as error:
            self._say(f"Auto Scaling did not take the heartbeat of hook {lifecycle.launch_hook}: {error}")


class _Beside:
    """Work in a thread beside the boot's steps."""

    def __init__(self, work: Callable[[], None]) -> None:
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._do, args=(work,), name="beside the boot")
        self._thread.start()

    def _do(self, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as error:  # noqa: BLE001 - raised again by whoever looks
            self._error = error

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether it has ended, after so long at most."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def check(self) -> None:
        """Raises: what the work raised."""
        if self._error is not None:
            raise self._error


def _waits() -> Iterator[float]:
    """Pauses between looks: short ones first, then ``POLL_S``."""
    seconds = FIRST_POLL_S
    while True:
        yield seconds
        seconds = min(2 * seconds, POLL_S)


def _is_ours(says: Mapping[str, str] | None) -> bool:
    """Whether blkid found a file system that a first boot has made."""
    return says is not None and says.get("TYPE") in ("ext4", "xfs") and says.get("LABEL") == LABEL


def broker_settings(settings: Settings, instance_id: str, *, address: str, rack: str) -> dict[str, str]:
    """What is in ``firn.properties``: the broker's settings by their own names.

    ``address`` is the machine's own, which a broker that is one of many advertises; ``rack`` is where it is.
    """
    named = address if settings.own_address else settings.advertised_host
    host = f"[{named}]" if ":" in named else named
    without_disk = {
        "node.id": AUTO,
        "firn.ephemeral": "true",
        "firn.spot.notice.endpoint": settings.endpoints.get("imds", METADATA),
    }
    return {
        **settings.broker,
        **(without_disk if settings.without_disk else {"node.id": str(settings.node_id)}),
        "broker.rack": rack,
        "log.dirs": "/var/lib/firn/data",
        "firn.store.url": settings.store,
        "listeners": f"PLAINTEXT://0.0.0.0:{KAFKA_PORT}",
        "advertised.listeners": f"PLAINTEXT://{host}:{settings.advertised_port}",
        "firn.http.listen": f"0.0.0.0:{settings.http_port}" if settings.http_enabled else "off",
        "firn.instance.id": instance_id,
    }


def _uuid_text(text: str) -> str:
    """Kafka's form of a UUID (22 characters of base64) in the usual one. Raises: Refused."""
    try:
        return str(uuid.UUID(bytes=base64.urlsafe_b64decode(text + "==")))
    except ValueError as error:
        raise Refused(f"meta.properties of the data directory is damaged: {text!r} is no directory id.") from error


def _json_object(text: str) -> dict[str, Any] | None:
    try:
        found = json.loads(text)
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def _quoted(value: str) -> str:
    """For an environment file of systemd."""
    return '"' + re.sub(r'(["\\`$])', r"\\\1", value) + '"'


# --- the command -------------------------------------------------------------------------------------------------


def boot(settings_path: Path, wheelhouse: Path | None, machine: Machine, *, secret_only: bool = False) -> int:
    """Everything, or what `refresh` does, with one line for whatever stops it. Returns the exit code."""
    ends = "The secret is not in force" if secret_only else "Firn does not start"
    lock_path = machine.path("/run/firn-bootstrap.lock")
    lock_path.parent.mkdir(parents=True, exist_ok=True)
    with lock_path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            machine.say("Another boot of Firn is under way on this machine.", failed=True)
            return 1
        one: Boot | None = None
        try:
            settings = read_settings(settings_path)
            http = UrllibHttp()
            metadata = Metadata(http, machine.clock, settings.endpoints.get("imds", METADATA))
            aws = Aws(http, machine.clock, metadata, settings.region, settings.endpoints)
            one = Boot(settings, machine, http, metadata, aws, wheelhouse)
            one.refresh() if secret_only else one.run()
        except Refused as error:
            machine.say(f"{ends}: {error}", failed=True)
            return 1
        except (Unreachable, AwsError, OSError, tarfile.TarError) as error:
            machine.say(f"{ends}: {type(error).__name__}: {error}", failed=True)
            return 1
        except Exception as error:  # noqa: BLE001 - whatever it is, it is one line in the journal
            machine.say(f"{ends}: {_unexpected(error)}", failed=True)
            return 1
        finally:
            if one is not None:
                one.close()
    return 0


def _unexpected(error: Exception) -> str:
    """A mistake of this program in one line, with the place where it happened."""
    place = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(place.filename).name}, line {place.lineno}"
    return f"this should not happen: {type(error).__name__}: {error} ({where}). Please report it."


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="firn_bootstrap", description="Bring this machine from its boot to a broker that serves."
    )
    parser.add_argument("--settings", type=Path, default=Path(SETTINGS), help="bootstrap.json of the launch template")
    parser.add_argument(
        "--wheelhouse", type=Path, help="an unpacked wheelhouse, for a release that is not installed yet"
    )
    parser.add_argument("--bake", type=Path, metavar="ARCHIVE", help="install this wheelhouse into an image, and end")
    parser.add_argument("--secret", action="store_true", help="put a changed secret in force while the broker serves")
    options = parser.parse_args(arguments)
    machine = Machine()
    if options.bake is None:
        return boot(options.settings, options.wheelhouse, machine, secret_only=options.secret)
    try:
        machine.say(f"Release {bake(machine, options.bake)} is baked.")
    except (Refused, OSError, tarfile.TarError) as error:
        machine.say(f"The image is not complete: {error}", failed=True)
        return 1
    except Exception as error:  # noqa: BLE001 - whatever it is, it is one line
        machine.say(f"The image is not complete: {_unexpected(error)}", failed=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
