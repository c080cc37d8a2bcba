"""The unit files, held against systemd's own checks and against the program that they start."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

UNITS = Path(__file__).parents[3] / "infra" / "systemd"
SERVICES = sorted(UNITS.glob("*.service"))
TIMERS = sorted(UNITS.glob("*.timer"))
EXPOSURE_MAX = {
    "firn.service": 15,
    "firn-http.service": 13,
    "firn-agent.service": 15,
    "firn-secret.service": 55,
    "firn-bootstrap.service": 90,
}
"""Tenths of systemd's exposure level. The bootstrap formats, mounts and installs as root: it cannot be harmless. For a new
secret root writes files, and runs commands as the broker's user."""

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")


def directives(unit: Path) -> list[tuple[str, str]]:
    return [
        (name, value)
        for line in unit.read_text().splitlines()
        if line and line[0] not in "#[;"
        for name, _, value in [line.partition("=")]
    ]


def values(unit: Path, name: str) -> list[str]:
    return [value for found, value in directives(unit) if found == name]


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["systemd-analyze", *arguments], capture_output=True, text=True, check=False, timeout=60)


def verify(tmp_path: Path, units: list[Path]) -> str:
    """What `systemd-analyze verify` says of the units in a root where the commands that they start are."""
    root = tmp_path / "root"
    folder = root / "etc/systemd/system"
    folder.mkdir(parents=True)
    shutil.copytree("/lib/systemd/system", root / "lib/systemd/system", symlinks=True)
    for command in ("opt/firn/current/bin/firn", "usr/bin/python3"):
        (root / command).parent.mkdir(parents=True, exist_ok=True)
        (root / command).write_text("#!/bin/sh\n")
        (root / command).chmod(0o755)
    for unit in units:
        shutil.copy(unit, folder)
    done = analyze("verify", "--man=no", f"--root={root}", *[str(folder / unit.name) for unit in units])
    # It ends with 0 for a directive that it does not know, so what it says counts.
    return done.stderr + (f"exit code {done.returncode}" if done.returncode else "")


@needs_systemd
def test_systemd_finds_nothing_to_say_about_the_units(tmp_path: Path) -> None:
    assert verify(tmp_path, SERVICES + TIMERS) == ""


@needs_systemd
@pytest.mark.parametrize(
    ("line", "complaint"),
    [("NoNewPrivilges=yes", "Unknown key 'NoNewPrivilges'"), ("Restart=sometimes", "Failed to parse"), ("User=", None)],
    ids=["a directive that is not known", "a value that is not allowed", "nothing wrong"],
)
def test_the_check_of_the_units_sees_a_planted_mistake(tmp_path: Path, line: str, complaint: str | None) -> None:
    unit = tmp_path / "firn.service"
    unit.write_text((UNITS / "firn.service").read_text() + f"\n{line}\n")
    said = verify(tmp_path, [unit])
    assert (complaint in said) if complaint else said == ""


@needs_systemd
@pytest.mark.parametrize("unit", SERVICES, ids=lambda unit: unit.name)
def test_a_unit_is_no_more_exposed_than_it_has_to_be(unit: Path) -> None:
    done = analyze("security", "--offline=true", f"--threshold={EXPOSURE_MAX[unit.name]}", "--no-pager", str(unit))
    assert done.returncode == 0, done.stdout[-3000:]


@needs_systemd
def test_the_gate_of_exposure_sees_a_unit_without_its_filters(tmp_path: Path) -> None:
    weaker = re.sub(
        r"(?m)^(SystemCallFilter|CapabilityBoundingSet|NoNewPrivileges)=.*\n", "", (UNITS / "firn.service").read_text()
    )
    unit = tmp_path / "firn.service"
    unit.write_text(weaker)
    assert (
        analyze("security", "--offline=true", f"--threshold={EXPOSURE_MAX['firn.service']}", str(unit)).returncode != 0
    )


def firn_command(unit: Path) -> list[str]:
    [command] = values(unit, "ExecStart")
    program, *arguments = shlex.split(command)
    assert program == "/opt/firn/current/bin/firn"
    return arguments


@pytest.mark.parametrize("name", ["firn.service", "firn-http.service"])
def test_every_flag_of_a_unit_is_a_flag_of_the_command(name: str) -> None:
    from app.cli.commands import application

    arguments = firn_command(UNITS / name)
    command = application(arguments).commands[arguments[0]]  # type: ignore[attr-defined]
    known = {flag for parameter in command.params for flag in parameter.opts}
    flags = [one for one in arguments[1:] if one.startswith("-")]
    assert flags
    assert set(flags) <= known


def test_every_setting_that_a_unit_gives_in_the_environment_is_one_of_the_programs() -> None:
    from firn_settings import HTTP_SETTINGS

    done = subprocess.run(
        [sys.executable, "-m", "app.cli", "serve", "--list-settings", "--json"],
        capture_output=True,
        text=True,
        check=True,
    )
    known = {one["environment"] for one in json.loads(done.stdout)} | {"FIRN_BOOTSTRAP"}
    expanded = {"FIRN_HTTP_ADDRESS", "FIRN_HTTP_FLAGS"}  # of firn-http.service itself
    given = {"FIRN_TAKE_OVER"} | {
        value.partition("=")[0]
        for unit in SERVICES
        for value in values(unit, "Environment")
        if value.startswith("FIRN_")
    }
    assert given - expanded <= known
    http = (UNITS / "firn-http.service").read_text()
    assert all(f"${{{name}}}" in http or f"${name}" in http for name in expanded)
    assert HTTP_SETTINGS[0] == "bootstrap.servers"


def test_a_broker_is_never_started_on_the_root_disk() -> None:
    unit = UNITS / "firn.service"
    assert values(unit, "AssertPathIsMountPoint") == ["/var/lib/firn"]
    assert values(unit, "RequiresMountsFor") == ["/var/lib/firn"]
    assert "[Install]" not in unit.read_text(), "only the bootstrap starts it, when the volume is mounted"


def test_what_the_bootstrap_mounts_is_seen_by_everybody() -> None:
    """Each of these gives a unit a mount name space, in which a mounted volume stays."""
    names = {name for name, _ in directives(UNITS / "firn-bootstrap.service")}
    hiding = re.compile(
        r"Private(Tmp|Devices|Mounts|Users)|Protect\w+|(ReadOnly|ReadWrite|Inaccessible|Exec|NoExec)Paths|Bind\w*Paths"
    )
    assert [name for name in names if hiding.fullmatch(name)] == []


def test_a_broker_that_may_not_take_over_yet_is_started_again_for_as_long_as_it_takes() -> None:
    unit = UNITS / "firn.service"
    assert values(unit, "Restart") == ["on-failure"]
    assert values(unit, "StartLimitIntervalSec") == ["0"]
    assert values(unit, "RestartPreventExitStatus") == [], (
        "a node id that is still held has the exit code of wrong settings"
    )


def test_the_kernel_settings_are_known_to_this_kernel() -> None:
    text = (UNITS / "60-firn.conf").read_text()
    names = [line.partition("=")[0].strip() for line in text.splitlines() if line and line[0] not in "#;"]
    assert names
    missing = [name for name in names if not Path("/proc/sys", *name.split(".")).exists()]
    if missing and not Path("/proc/sys/net/ipv4/tcp_keepalive_time").exists():
        pytest.skip("this kernel hides its network settings")
    assert missing == []
