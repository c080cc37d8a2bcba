"""The rehearsal itself: it sees what is lost, ends what it started, and (slow) boots machines for real."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast
from unittest.mock import MagicMock

import pytest
from firn_security import check_trust, parse_secret, principal_of

from app.cli.tls import certificate_of
from app.wire.private import PartitionTierStatus
from infra.rehearsal.__main__ import TOOLS, check_tools
from infra.rehearsal.cloud import name_of
from infra.rehearsal.keys import Keys, watched_command_lines
from infra.rehearsal.load import State
from infra.rehearsal.machine import Failed, Line, Machine
from infra.rehearsal.root import NotPossible, mirror
from infra.rehearsal.scenario import ADVERTISED, Stage, lost_machine_same_volume, reboot
from tests.support.waiting import block_until

ROOT = Path(__file__).parents[3]
DEADLINE_S = 120.0
"""Making and ending name spaces takes half a minute at times, when others are made and ended beside them."""
STATE = State(
    records={"orders-0": (5000, 5000, "aa"), "customers-0": (200, 200, "bb")},
    offsets={"orders-0": 100},
    transactional_ids={"payments-writer": "cc"},
    customers={"customer 1": "round 2"},
)


def can_rehearse() -> str:
    """Why this machine cannot; empty if it can."""
    try:
        check_tools()
    except NotPossible as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    "later",
    [
        replace(STATE, records={**STATE.records, "orders-0": (4000, 4000, "dd")}),
        replace(STATE, records={**STATE.records, "orders-0": (5000, 5000, "dd")}),
        replace(STATE, records={"orders-0": (5000, 5000, "aa")}),
        replace(STATE, offsets={}),
        replace(STATE, offsets={"orders-0": 99}),
        replace(STATE, transactional_ids={}),
        replace(STATE, customers={"customer 1": "round 1"}),
        replace(STATE, customers={}),
    ],
    ids=["tail", "changed", "partition", "no offset", "older offset", "id", "older value", "no value"],
)
def test_whatever_is_lost_is_named(later: State) -> None:
    assert len(STATE.differences(later)) == 1
    assert STATE.differences(STATE) == []


class Lived:
    """A machine that says what is tiered, and writes down how it ends."""

    instance_id = "i-0123456789abcdef0"

    def __init__(self, tiered_ends: list[int]) -> None:
        self.tiered_ends = tiered_ends
        self.ended = False

    def run(self, *command: str) -> str:
        assert command[:4] == ("/opt/firn/current/bin/firn", "tier", "status", "orders")
        assert "--json" in command
        rows = [
            {"topic": "orders", "partition": partition, "log_end_offset": 2000, "tiered_end_offset": end}
            for partition, end in enumerate(self.tiered_ends)
        ]
        return json.dumps(rows)

    def wait_until_said(self, text: str, timeout_s: float) -> Line:
        return Line(0.0, "firn-bootstrap", text)

    def end(self) -> float:
        self.ended = True
        return 0.0

    lose = power_off = end


class Ended(Exception):
    """The machine was ended, and the step went on to the next one."""


class Alone(Stage):
    """A stage of one machine, which needs no cloud."""

    def __init__(self, one: Lived) -> None:
        self.one, self.load, self.cloud, self.volume, self.rows = one, MagicMock(), MagicMock(), MagicMock(), []

    @contextmanager
    def booted(self, *_: object, **__: object) -> Iterator[Any]:
        if self.one.ended:
            raise Ended
        yield self.one
        if self.one.ended:
            raise Ended

    def serve(self, one: object) -> float:
        return 0.0


@pytest.mark.parametrize("step", [lost_machine_same_volume, reboot])
def test_a_machine_whose_records_are_all_in_the_store_already_is_not_ended(step: Callable[[Stage], None]) -> None:
    one = Lived([2000, 2000, 2000])
    with pytest.raises(Failed, match="Every record of orders is in the store already"):
        step(Alone(one))
    assert not one.ended


def test_a_machine_with_a_tail_on_its_volume_only_is_ended() -> None:
    one = Lived([2000, 1990, 2000])
    assert Alone(one).tail(cast(Machine, one)) == "10 records on the volume only"
    with pytest.raises(Ended):
        lost_machine_same_volume(Alone(one))


def test_the_rehearsal_asks_for_fields_that_the_tier_status_has() -> None:
    assert {"log_end_offset", "tiered_end_offset"} <= set(PartitionTierStatus.__struct_fields__)


def test_a_secret_that_is_renewed_has_another_certificate_of_the_same_subject(tmp_path: Path) -> None:
    keys = Keys(tmp_path / "keys", ADVERTISED, "*.eu-central-1.compute.internal")
    first, certificate, words = parse_secret(keys.secret), keys.certificate, keys.words
    keys.renew("app")
    renewed = parse_secret(keys.secret)
    assert keys.certificate != certificate
    assert {name for name in first.users if first.users[name] != renewed.users[name]} == {"admin"}
    assert set(renewed.users) == {"admin", "metrics", "app"}
    assert set(words.values()) & set(keys.words.values()) == {first.users["metrics"]}
    principals = {principal_by(tmp_path, secret.keystore) for secret in (first, renewed)}
    assert principals == {"User:CN=broker"}


def principal_by(folder: Path, keystore: str) -> str:
    (folder / "shown.pem").write_text(keystore)
    check_trust(folder / "shown.pem", folder / "keys" / "ca.pem", (ADVERTISED, name_of("10.42.0.11")))
    return principal_of(certificate_of(folder / "shown.pem"))


def test_what_stands_on_a_command_line_is_seen() -> None:
    with watched_command_lines() as seen, subprocess.Popen(["sleep", "1000.0625"]) as process:
        try:
            block_until(lambda: seen.holds({"how long": "1000.0625"}), "the command line was seen", DEADLINE_S)
        finally:
            process.kill()
    assert seen.holds({"something else": "1000.0626"}) == []


def test_the_mirror_is_that_of_this_machines_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apt = tmp_path / "apt-get"
    apt.write_text(
        "#!/bin/sh\necho bookworm-updates main http://b.test/debian/\necho bookworm main http://a.test/debian/\n"
    )
    apt.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    assert mirror() == "http://a.test/debian/"
    apt.write_text("#!/bin/sh\necho trixie main http://b.test/debian/\n")
    with pytest.raises(NotPossible, match="no source of Debian bookworm"):
        mirror()


def test_a_machine_without_the_tools_is_told_which_packages_it_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(shutil, "which", lambda tool, path=None: None if tool == "debootstrap" else f"/bin/{tool}")
    with pytest.raises(NotPossible, match="install debootstrap"):
        check_tools()
    assert {"debootstrap", "systemd-container"} <= set(TOOLS.values())


@pytest.mark.slow
@pytest.mark.skipif(can_rehearse() != "", reason=can_rehearse())
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_whatever_the_rehearsal_started_ends_with_it(tmp_path: Path, number: signal.Signals) -> None:
    inner = textwrap.dedent(
        """
        import pathlib, signal, subprocess, sys
        folder = pathlib.Path(sys.argv[1])
        def interrupt(number, frame):
            raise KeyboardInterrupt
        signal.signal(signal.SIGTERM, interrupt)
        child = subprocess.Popen(["sleep", "1000"])
        (folder / "spaces").write_text(str((folder / "x").stat().st_ino))
        try:
            (folder / "started").touch()
            child.wait()
        except KeyboardInterrupt:
            (folder / "cleaned").touch()
        """
    )
    (tmp_path / "x").touch()
    outer = "import sys; from infra.rehearsal.__main__ import in_name_spaces; sys.exit(in_name_spaces(sys.argv[1:]))"
    command = [sys.executable, "-c", outer, sys.executable, "-c", inner, str(tmp_path)]
    process = subprocess.Popen(command, cwd=ROOT, start_new_session=True, preexec_fn=mind_ctrl_c)
    group = process.pid
    block_until(lambda: (tmp_path / "started").exists(), "the command began", DEADLINE_S)
    if number == signal.SIGINT:
        os.killpg(group, number)  # as a terminal does
    else:
        process.send_signal(number)
    process.wait(DEADLINE_S)
    block_until(lambda: (tmp_path / "cleaned").exists(), "the command had its turn to end what it started", DEADLINE_S)
    block_until(lambda: not running_in(group), "nothing of it runs any more", DEADLINE_S)


def mind_ctrl_c() -> None:
    """As at a terminal. A shell has what it starts in the background ignore SIGINT, these tests among it."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def running_in(session: int) -> list[int]:
    """Processes of a session."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] != "Z":
            found.append(int(path.parent.name))
    return found


@pytest.mark.slow
@pytest.mark.skipif(can_rehearse() != "", reason=can_rehearse())
def test_a_deployment_survives_what_the_rehearsal_does_to_it() -> None:
    """Times are measured by ``make rehearse``; here only what is lost or wrong counts."""
    done = subprocess.run([sys.executable, "-m", "infra.rehearsal", "--no-limits"], cwd=ROOT, check=False, timeout=3600)
    assert done.returncode == 0
