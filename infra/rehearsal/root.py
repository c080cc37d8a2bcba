"""The Debian root that machines boot: made once by debootstrap, kept under ``.cache``, and never written by a machine.

The mirror is that of this machine's own apt configuration. What a machine image has beside Debian's base is one unit that does what
cloud-init does with user data: it asks the instance metadata for it and runs it once.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
from pathlib import Path
from typing import Final

CODENAME: Final = "bookworm"
PACKAGES: Final = "ca-certificates,dbus,e2fsprogs,iproute2,procps,python3,python3-venv,systemd,systemd-sysv,xfsprogs"

_USER_DATA_UNIT: Final = """\
[Unit]
Description=Run the user data once, as cloud-init does
Wants=network-online.target
After=network-online.target
ConditionPathExists=!/var/lib/user-data/done

[Service]
Type=oneshot
RemainAfterExit=yes
TimeoutStartSec=infinity
ExecStart=/usr/bin/python3 /usr/local/lib/user-data.py

[Install]
WantedBy=multi-user.target
"""

_USER_DATA: Final = """\
import os, pathlib, urllib.request
base = "http://169.254.169.254/latest/"
put = urllib.request.Request(
    base + "api/token", method="PUT", headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"}
)
token = urllib.request.urlopen(put, timeout=10).read().decode()
get = urllib.request.Request(base + "user-data", headers={"X-aws-ec2-metadata-token": token})
folder = pathlib.Path("/var/lib/user-data")
folder.mkdir(parents=True, exist_ok=True)
script = folder / "part-001"
script.write_bytes(urllib.request.urlopen(get, timeout=10).read())
script.chmod(0o700)
(folder / "done").touch()
os.execv(script, [str(script)])
"""


class NotPossible(Exception):
    """The rehearsal cannot run on this machine. The text says what is missing."""


def mirror() -> str:
    """Where this machine's apt gets the packages of Debian 12 from. Raises: NotPossible."""
    done = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(CODENAME) $(COMPONENT) $(REPO_URI)", "Created-By: Packages"],
        capture_output=True,
        text=True,
        check=False,
    )
    for line in done.stdout.splitlines():
        codename, component, uri = line.split(maxsplit=2)
        if (codename, component) == (CODENAME, "main"):
            return uri
    raise NotPossible(f"apt on this machine has no source of Debian {CODENAME}; add one, because debootstrap needs it.")


def debian_root(cache: Path) -> Path:
    """The root's folder, made if it is not there. Raises: NotPossible, subprocess.CalledProcessError."""
    recipe = hashlib.sha256(f"{CODENAME} {PACKAGES} {_USER_DATA_UNIT} {_USER_DATA}".encode()).hexdigest()[:12]
    root = cache / f"debian-{recipe}"
    if root.is_dir():
        return root
    new = cache / f"debian-{recipe}.new"
    shutil.rmtree(new, ignore_errors=True)
    cache.mkdir(parents=True, exist_ok=True)
    command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", CODENAME, str(new), mirror()]
    with (cache / "debootstrap.log").open("wb") as log:
        subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=True)
    furnish(new)
    new.rename(root)
    return root


def furnish(root: Path) -> None:
    """What makes a machine image of a Debian base."""
    shutil.rmtree(root / "var/cache/apt", ignore_errors=True)
    (root / "etc/systemd/system/user-data.service").write_text(_USER_DATA_UNIT)
    wants = root / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir(exist_ok=True)
    (wants / "user-data.service").symlink_to("../user-data.service")
    (root / "usr/local/lib/user-data.py").write_text(_USER_DATA)
    (root / "var/log/journal").mkdir(exist_ok=True)
    (root / "etc/machine-id").write_text("")
    (root / "etc/hostname").write_text("firn-rehearsal\n")
    (root / "etc/resolv.conf").unlink(missing_ok=True)
    (root / "etc/resolv.conf").write_text("")
    for unit in (
        "apt-daily.timer",
        "apt-daily-upgrade.timer",
        "fstrim.timer",
        "e2scrub_all.timer",
        "dpkg-db-backup.timer",
    ):
        mask = root / "etc/systemd/system" / unit
        mask.unlink(missing_ok=True)
        mask.symlink_to("/dev/null")


def baked_root(root: Path, archive: Path, sha256: str, cache: Path) -> Path:
    """A copy of ``root`` with the wheelhouse baked in by the bootstrap itself, run in that root."""
    baked = cache / f"{root.name}-baked-{sha256[:12]}"
    if baked.is_dir():
        return baked
    for old in cache.glob(f"{root.name}-baked-*"):
        shutil.rmtree(old)  # of another release, or not finished
    new = baked.with_name(baked.name + ".new")
    subprocess.run(["cp", "-a", str(root), str(new)], check=True)
    program = Path(__file__).parents[1] / "bootstrap"
    inside = new / "tmp/bake"
    inside.mkdir()
    for source in program.glob("*.py"):
        shutil.copy(source, inside)
    shutil.copy(archive, inside / "wheelhouse.tar.gz")
    subprocess.run(
        [
            "chroot",
            str(new),
            "/usr/bin/python3",
            "/tmp/bake/firn_bootstrap.py",
            "--bake",
            "/tmp/bake/wheelhouse.tar.gz",
        ],
        check=True,
        stdout=subprocess.DEVNULL,
    )
    shutil.rmtree(inside)
    new.rename(baked)
    return baked
