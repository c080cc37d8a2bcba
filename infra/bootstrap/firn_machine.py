"""What the first boot does to a machine: files, commands, disks as sysfs shows them, releases, and lines in the journal."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import shutil
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from firn_aws import Clock, SystemClock
from firn_settings import Refused

USER: Final = "firn"
"""Who runs the broker, and whose its data is."""
COMMAND_TIMEOUT_S: Final = 600.0
_ENVIRONMENT: Final = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8"}


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
        return lines[-1][:500].rstrip(".") if lines else f"exit code {self.code}"


class Commands(Protocol):
    """A process that runs commands of ``firn``."""

    def run(self, *arguments: str) -> Done:
        """Run one to its end. A process that is gone, or takes too long, has failed. Raises: nothing of its own."""

    def close(self) -> None: ...


class Machine:
    """The file system, commands and the journal. ``root`` is where its paths begin; tests give a directory."""

    def __init__(self, root: Path = Path("/"), clock: Clock | None = None) -> None:
        self.root = root
        self.clock: Clock = clock or SystemClock()

    def path(self, absolute: str) -> Path:
        return self.root / absolute.lstrip("/")

    def run(self, *command: str, user: str | None = None, environment: Mapping[str, str] | None = None) -> Done:
        """Run a command to its end. A command that is not there, or takes too long, has failed. Raises: nothing of its own."""
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
                env=_ENVIRONMENT | dict(environment or {}),
                cwd="/",
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return Done(127, "", f"{command[0]}: {error}")
        return Done(done.returncode, done.stdout, done.stderr)

    def commands(self, release: Path, user: str, environment: Mapping[str, str]) -> Commands:
        """Begin a process for commands of a release; it imports what they need at once. Raises: OSError."""
        return _CommandsProcess(release, user, environment)

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


class _CommandsProcess:
    def __init__(self, release: Path, user: str | None, environment: Mapping[str, str]) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        self._process = subprocess.Popen(
            (str(release / "bin" / "python"), "-sE", str(Path(__file__).with_name("firn_commands.py"))),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            user=user,
            group=user,
            extra_groups=None if user is None else [],
            env=_ENVIRONMENT | dict(environment),
            cwd="/",
        )

    def run(self, *arguments: str) -> Done:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(arguments).encode() + b"\n")
            self._process.stdin.flush()
        except OSError:
            return self._gone()
        text = bytearray()
        end_s = time.monotonic() + COMMAND_TIMEOUT_S
        output = select.poll()  # select() takes no descriptor above 1,023
        output.register(self._process.stdout, select.POLLIN)
        while not text.endswith(b"\n"):
            if not output.poll(max(end_s - time.monotonic(), 0) * 1000):
                self._process.kill()
                return Done(127, "", f"firn {arguments[0]} did not end within {COMMAND_TIMEOUT_S:.0f} s")
            data = os.read(self._process.stdout.fileno(), 1 << 16)
            if not data:
                return self._gone()
            text += data
        says = json.loads(text)
        return Done(says["code"], says["out"], says["error"])

    def _gone(self) -> Done:
        self._process.kill()
        code = self._process.wait()
        self._said.seek(0)
        return Done(code if code > 0 else 127, "", self._said.read().decode(errors="replace"))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout, self._said):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()


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


def write_whole(path: Path, text: str, mode: int) -> bool:
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


def install(machine: Machine, wheelhouse: Path, release: Path) -> None:
    """Make the venv of a release from an unpacked wheelhouse. One that was not finished is begun anew. Raises: Refused, OSError."""
    if release.exists():
        shutil.rmtree(release)
    release.parent.mkdir(parents=True, exist_ok=True)
    program = str(Path(__file__).with_name("firn_install.py"))
    done = machine.run("/usr/bin/python3", "-sE", program, "--wheelhouse", str(wheelhouse), "--release", str(release))
    if done.code != 0:
        raise Refused(f"The release cannot be installed: {done.last_words}.")
    for folder in ("bootstrap", "systemd"):
        shutil.copytree(wheelhouse / folder, release / folder, ignore=shutil.ignore_patterns("__pycache__"))
    version = machine.run(str(release / "bin" / "firn"), "--version")
    if version.code != 0:
        raise Refused(f"The release does not run: {version.last_words}.")
    write_whole(release / ".complete", version.out, 0o644)


def write_units(machine: Machine, release: Path) -> tuple[bool, list[Path]]:
    """Put a release's units and kernel settings in place. Returns whether a unit was changed, and the files of kernel settings."""
    changed = False
    units = (one for pattern in ("*.service", "*.timer") for one in (release / "systemd").glob(pattern))
    for unit in sorted(units):
        changed |= write_whole(machine.path(f"/etc/systemd/system/{unit.name}"), unit.read_text(), 0o644)
    kernel = []
    for conf in sorted((release / "systemd").glob("*.conf")):
        kernel.append(machine.path(f"/etc/sysctl.d/{conf.name}"))
        write_whole(kernel[-1], conf.read_text(), 0o644)
    return changed, kernel


def unpack(archive: Path, target: Path) -> None:
    """Unpack a wheelhouse: files and folders below ``target`` and nothing else. Raises: Refused, OSError, tarfile.TarError."""
    with tarfile.open(archive, "r:gz") as tar:
        members = tar.getmembers()
        for one in members:
            if not (one.isfile() or one.isdir()) or one.name.startswith("/") or ".." in one.name.split("/"):
                raise Refused(f"The wheelhouse has the entry {one.name!r}, which is no file or folder inside it.")
        tar.extractall(target, members)


def bake(machine: Machine, archive: Path) -> str:
    """Put a wheelhouse and its release into an image, so that no boot downloads, installs or has new units. Returns its SHA-256.

    The units are not enabled: the first boot belongs to the user data.
    """
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
    write_units(machine, release)
    return sha256


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
