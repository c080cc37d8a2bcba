"""``make rehearse``: rehearse a deployment on this machine, and print a table of how long each part takes.

    python -m infra.rehearsal [--only STEP,…]

Needs root, debootstrap, systemd-nspawn and loop devices. The rehearsal runs in its own namespaces, so it uses no port and no mount
of this machine. All its processes end with it, however it ends.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from infra.rehearsal.root import NotPossible, baked_root, debian_root
from infra.rehearsal.wheelhouses import Wheelhouses, build_wheelhouses

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = ROOT / ".cache" / "rehearsal"
TOOLS: Final = {
    "debootstrap": "debootstrap",
    "systemd-nspawn": "systemd-container",
    "unshare": "util-linux",
    "setpriv": "util-linux",
    "nsenter": "util-linux",
    "losetup": "mount",
    "ip": "iproute2",
    "journalctl": "systemd",
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m infra.rehearsal", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", default="", help="steps to run, separated by commas [all]")
    parser.add_argument("--no-limits", action="store_true", help="print times, but ignore their limits")
    parser.add_argument("--inside", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    only = frozenset(filter(None, options.only.split(",")))
    if options.inside is not None:
        from infra.rehearsal.scenario import rehearse

        return rehearse(Wheelhouses.read(options.inside), options.inside, only, limits=not options.no_limits)
    try:
        check_tools()
        say("building two wheelhouses: this tree's, and the next version's")
        houses = build_wheelhouses(ROOT, CACHE)
        say("making the Debian root (some minutes the first time)")
        houses.image = debian_root(CACHE)
        say("installing the release in an image")
        houses.baked_image = baked_root(houses.image, houses.archive, houses.sha256, CACHE)
    except NotPossible as error:
        sys.stderr.write(f"make rehearse: {error}\n")
        return 2
    except subprocess.CalledProcessError as error:
        sys.stderr.write(f"make rehearse: {error}; see {CACHE}\n")
        return 1
    work = CACHE / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    houses.write(work)
    command = [sys.executable, "-m", "infra.rehearsal", "--inside", str(work), "--only", options.only]
    return in_name_spaces([*command, *(["--no-limits"] if options.no_limits else [])])


def in_name_spaces(command: list[str]) -> int:
    """Run a command in its own mount, network and process namespaces. Its processes end with it. Returns its exit code."""
    # unshare passes no signal on. If this process ends, however, the kernel kills unshare, and tells the command to end.
    spaces = [
        "setpriv",
        "--pdeathsig",
        "KILL",
        "unshare",
        "--mount",
        "--net",
        "--pid",
        "--fork",
        "--kill-child=SIGTERM",
    ]
    process = subprocess.Popen([*spaces, "--mount-proc", *command], cwd=ROOT)
    while True:
        try:
            return process.wait()
        except KeyboardInterrupt:
            continue  # the command was told too, and ends what it started first


def check_tools() -> None:
    """Raises: NotPossible."""
    if os.geteuid() != 0:
        raise NotPossible("The rehearsal mounts disks and boots machines: run it as root.")
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    os.environ["PATH"] = path
    missing = sorted({package for tool, package in TOOLS.items() if shutil.which(tool, path=path) is None})
    if missing:
        raise NotPossible(f"Commands are missing: install {', '.join(missing)} (names of Debian packages).")
    if not Path("/dev/loop-control").exists():
        raise NotPossible("This machine has no loop devices; the rehearsal needs them as volumes.")


def say(text: str) -> None:
    sys.stdout.write(f"==> {text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
