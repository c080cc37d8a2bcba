"""A machine of the rehearsal: a Debian root that boots for real under systemd-nspawn, over a disk that a loop device makes.

Its root is an overlay, so each machine begins as the image is. A volume is a sparse file behind a loop device, which the machine
finds as ``/dev/nvme1n1`` once EC2 has attached it: a filled tree at ``/sys/block`` shows it then, with the serial number that EBS
gives.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from infra.rehearsal.cloud import HOST, Cloud, name_of
from tests.infra.imds import Instance

VOLUME_BYTES = 20 << 30
DEVICE = "nvme1n1"
BRIDGE = "firn-br"


class Failed(Exception):
    """The rehearsal found something wrong."""


class Volume:
    """An EBS volume: an id, and a loop device with a sparse file."""

    def __init__(self, cloud: Cloud, work: Path) -> None:
        self.volume_id = cloud.new_volume()
        self.image = work / f"{self.volume_id}.img"
        with self.image.open("wb") as out:
            out.truncate(VOLUME_BYTES)
        self.loop = _output("losetup", "--find", "--show", str(self.image))

    @property
    def serial(self) -> str:
        return self.volume_id.replace("-", "")

    def close(self) -> None:
        subprocess.run(["losetup", "--detach", self.loop], check=False, capture_output=True)
        self.image.unlink(missing_ok=True)


def detach_leftovers(work: Path) -> None:
    """Loop devices of a rehearsal that was killed."""
    for line in _output("losetup", "--list", "--noheadings", "--output", "NAME,BACK-FILE").splitlines():
        name, _, back = line.strip().partition(" ")
        if back.strip().startswith(str(work)):
            subprocess.run(["losetup", "--detach", name], check=False)


def _output(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


@dataclass(frozen=True)
class Line:
    at_s: float
    """Seconds since 1970."""
    who: str
    text: str


class Machine:
    """One instance. ``start`` boots it; ``lose``, ``power_off`` or ``close`` end it.

    A machine with an ``address`` has a network of its own, so that several can run at once. It is gone from the network when it
    ends, as a machine of EC2 is.
    """

    def __init__(
        self, cloud: Cloud, work: Path, image: Path, volume: Volume | None, user_data: str, address: str | None = None
    ) -> None:
        self.cloud = cloud
        self.instance_id = cloud.launch()
        self.volume = volume
        self.instance = Instance(
            instance_id=self.instance_id, user_data=user_data.encode(), lifecycle_state="InService"
        )
        self.address = address
        if address is not None:
            self.instance.local_ipv4, self.instance.local_hostname = address, name_of(address)
        self._folder = work / self.instance_id
        self._image = image
        self._root = self._folder / "root"
        self._sysfs = self._folder / "sys-block"
        self._nspawn: subprocess.Popen[bytes] | None = None
        self._watcher: threading.Thread | None = None
        self._ended = threading.Event()
        self.started_s = 0.0

    def start(self) -> None:
        for name in ("root", "upper", "work", "sys-block"):
            (self._folder / name).mkdir(parents=True)
        options = f"lowerdir={self._image},upperdir={self._folder}/upper,workdir={self._folder}/work"
        subprocess.run(["mount", "-t", "overlay", "overlay", "-o", options, str(self._root)], check=True)
        shutil.copy("/etc/hosts", self._root / "etc/hosts")
        if self.address is not None:
            self._connect(self.address)
        self._watcher = threading.Thread(target=self._show_disks, daemon=True)
        self._watcher.start()
        self.boot()

    def boot(self) -> None:
        """The kernel starts: the first time, or again after ``power_off``."""
        binds = [f"--bind={self._sysfs}:/sys/block"]
        if self.volume is not None:
            binds.append(f"--bind={self.volume.loop}:/dev/{DEVICE}")
        if self.address is None:
            self.cloud.metadata.become(self.instance)
        else:
            self.cloud.metadata.by_address[self.address] = self.instance
            binds.append(f"--network-namespace-path=/run/netns/{self._network}")
        command = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", f"--directory={self._root}", *binds]
        self.started_s = time.time()
        with (self._folder / "console.log").open("ab") as console:
            self._nspawn = subprocess.Popen(
                [*command, f"--machine={self.instance_id}", "--console=pipe", "--boot"],
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def _network(self) -> str:
        """Name of its network namespace, and of its end of the bridge: the kernel takes 15 characters."""
        return self.instance_id[-12:]

    def _connect(self, address: str) -> None:
        name = self._network
        for command in (
            ("ip", "netns", "add", name),
            ("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name),
            ("ip", "link", "set", name, "master", BRIDGE, "up"),
            ("ip", "-n", name, "link", "set", "lo", "up"),
            ("ip", "-n", name, "address", "add", f"{address}/24", "dev", "eth0"),
            ("ip", "-n", name, "link", "set", "eth0", "up"),
            ("ip", "-n", name, "route", "add", "default", "via", HOST),
        ):
            _output(*command)

    def _disconnect(self) -> None:
        if self.address is not None:
            subprocess.run(["ip", "link", "delete", self._network], check=False, capture_output=True)
            subprocess.run(["ip", "netns", "delete", self._network], check=False, capture_output=True)

    def _show_disks(self) -> None:
        """The kernel's part: a disk is there once EC2 has attached it."""
        volume = self.volume
        while volume is not None and not self._ended.is_set():
            if self.cloud.attached_to(volume.volume_id) == self.instance_id:
                device = self._sysfs / DEVICE / "device"
                device.mkdir(parents=True)
                (device / "model").write_text("Amazon Elastic Block Store              \n")
                (device / "serial").write_text(f"{volume.serial}\n")
                return
            self._ended.wait(0.1)

    # --- looking

    @property
    def leader(self) -> int:
        """The process id of the machine's init. Raises: Failed."""
        assert self._nspawn is not None
        children = Path(f"/proc/{self._nspawn.pid}/task/{self._nspawn.pid}/children").read_text().split()
        for child in children:
            if Path(f"/proc/{child}/comm").read_text().strip() == "systemd":
                return int(child)
        raise Failed(f"Machine {self.instance_id} does not run; its console is {self._folder}/console.log.")

    def run(self, *command: str, check: bool = True) -> str:
        """Run a command in the machine. Returns what it prints."""
        done = subprocess.run(
            ["nsenter", f"--target={self.leader}", "--mount", "--uts", "--ipc", "--pid", *command],
            capture_output=True,
            text=True,
            check=False,
        )
        if check and done.returncode != 0:
            raise Failed(f"{' '.join(command)} in {self.instance_id}: {done.stderr or done.stdout}.")
        return done.stdout

    def journal(self, *identifiers: str) -> list[Line]:
        """The machine's journal, oldest first: everything, or the lines of these."""
        only = [f"--identifier={name}" for name in identifiers]
        done = subprocess.run(
            ["journalctl", f"--directory={self._root}/var/log/journal", "--output=json", "--no-pager", *only],
            capture_output=True,
            text=True,
            check=False,
        )
        return list(_lines(done.stdout))

    def said(self, text: str) -> Line | None:
        """The first line of the bootstrap or the agent that has this text."""
        return next((line for line in self.journal("firn-bootstrap", "firn-agent") if text in line.text), None)

    def wait_until_said(self, text: str, timeout_s: float) -> Line:
        end_s = time.monotonic() + timeout_s
        while True:
            found = self.said(text)
            if found is not None:
                return found
            self.check_hope()
            if time.monotonic() > end_s or not self.is_running():
                raise Failed(f"{self.instance_id} did not say {text!r} within {timeout_s:.0f} s.\n{self.last_words()}")
            time.sleep(0.3)

    def wait_until_logged(self, who: str, text: str, timeout_s: float) -> Line:
        """The first line of any program that has this text."""
        end_s = time.monotonic() + timeout_s
        while True:
            found = next((line for line in self.journal(who) if text in line.text), None)
            if found is not None:
                return found
            if time.monotonic() > end_s or not self.is_running():
                raise Failed(f"{self.instance_id} did not log {text!r} within {timeout_s:.0f} s.\n{self.last_words()}")
            time.sleep(0.3)

    def check_hope(self) -> None:
        """Raises: Failed if the boot was refused."""
        refused = self.said("Firn does not start")
        if refused is not None:
            raise Failed(f"{refused.text}\n{self.last_words()}")

    def last_words(self) -> str:
        return "\n".join(f"    {line.who}: {line.text}" for line in self.journal()[-40:])

    def keep_journal(self, path: Path) -> None:
        """Write the journal to a file, for whoever looks for the reason of a failure: the machine's root goes with the machine."""
        with path.open("w") as out:
            for line in self.journal():
                moment = datetime.fromtimestamp(line.at_s, UTC).isoformat(timespec="milliseconds")
                out.write(f"{moment} {line.who}: {line.text}\n")

    def is_running(self) -> bool:
        return self._nspawn is not None and self._nspawn.poll() is None

    # --- ending

    def lose(self) -> float:
        """The machine is gone at once, as by a failure of its host. Returns when, in seconds since 1970."""
        assert self._nspawn is not None
        os.kill(self.leader, signal.SIGKILL)
        at_s = time.time()
        self._disconnect()
        self._nspawn.wait(30)
        self._ended.set()
        return at_s

    def power_off(self, timeout_s: float = 60) -> None:
        """EC2 stops or ends the machine: it shuts down in order."""
        assert self._nspawn is not None
        self._nspawn.terminate()
        try:
            self._nspawn.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise Failed(f"{self.instance_id} does not shut down.\n{self.last_words()}") from None
        self._disconnect()

    def close(self) -> None:
        """End what still runs, and remove the machine's root."""
        self._ended.set()
        if self._nspawn is not None and self._nspawn.poll() is None:
            self._nspawn.kill()
            self._nspawn.wait()
        self._disconnect()
        if self._watcher is not None:
            self._watcher.join(10)
        if os.path.ismount(self._root):
            subprocess.run(["umount", "--lazy", str(self._root)], check=False)
        shutil.rmtree(self._folder, ignore_errors=True)


def _lines(text: str) -> Iterator[Line]:
    for raw in text.splitlines():
        entry: dict[str, Any] = json.loads(raw)
        message = entry.get("MESSAGE")
        if isinstance(message, list):
            message = bytes(message).decode("utf-8", "replace")
        who = str(entry.get("SYSLOG_IDENTIFIER", entry.get("_COMM", "")))
        yield Line(int(entry["__REALTIME_TIMESTAMP"]) / 1e6, who, str(message or ""))


@contextmanager
def machine(
    cloud: Cloud, work: Path, image: Path, volume: Volume | None, user_data: str, address: str | None = None
) -> Iterator[Machine]:
    """A machine that boots, and is gone at the end of the block."""
    one = Machine(cloud, work, image, volume, user_data, address)
    try:
        one.start()
        yield one
    except BaseException:
        one.keep_journal(work / f"{one.instance_id}.journal")
        raise
    finally:
        one.close()
