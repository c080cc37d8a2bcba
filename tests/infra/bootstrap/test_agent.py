"""The agent: what it takes for the end of the machine, and what it does then."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import firn_agent
import pytest
from firn_agent import DEAD_S, DRAINED, NOT_WHOLE, RESERVE_S, SPOT_S, STOP_S, USAGE, Agent, SystemSurroundings, main
from firn_aws import Aws, Metadata, UrllibHttp
from firn_bootstrap import VOLUME_WAIT_S
from firn_settings import DRAIN_S_MAX, parse_settings

from tests.infra.bootstrap.conftest import REGION, FakeClock
from tests.infra.imds import LifecycleServer, MetadataServer

INSTANCE = "i-0123456789abcdef0"


class Drain:
    """``firn drain`` under way: it ends with ``code`` at ``end_s``, or never."""

    def __init__(self, clock: FakeClock, seconds: float | None, code: int) -> None:
        self._clock = clock
        self._end_s = None if seconds is None else clock.s + seconds
        self._code = code
        self.stopped = False

    def ended(self) -> int | None:
        return self._code if self._end_s is not None and self._clock.s >= self._end_s else None

    def stop(self) -> None:
        self.stopped = True


class Around:
    def __init__(self, clock: FakeClock) -> None:
        self.lines: list[str] = []
        self.commands: list[Sequence[str]] = []
        self.environments: list[Mapping[str, str]] = []
        self.takes: tuple[float | None, int] = (5.0, DRAINED)
        self.listens: Callable[[float], bool] = lambda s: True
        """Whether the broker listens so many seconds after the beginning."""
        self._begun_s = clock.s
        self.begun_s: list[float] = []
        self.drains: list[Drain] = []
        self._clock = clock

    def begin(self, command: Sequence[str], environment: Mapping[str, str]) -> Drain:
        assert environment["AWS_REGION"] == REGION
        self.environments.append(environment)
        self.commands.append(command)
        self.begun_s.append(self._clock.s)
        takes = (5.0, 0) if self.takes[0] is None and command[1] == "stop" else self.takes
        self.drains.append(Drain(self._clock, *takes))
        return self.drains[-1]

    def broker_listens(self) -> bool:
        return self.listens(self._clock.s - self._begun_s)

    def say(self, text: str) -> None:
        self.lines.append(text)

    @property
    def timeout_s(self) -> float:
        [command] = self.commands
        assert command[:4] == ("/opt/firn/current/bin/firn", "drain", "--data-dir", "/var/lib/firn/data")
        assert command[4] == "--timeout"
        return float(command[5])


Made = tuple[Agent, Around, FakeClock]


@pytest.fixture
def agent_of(settings: dict[str, Any], metadata: MetadataServer, hooks: LifecycleServer) -> Callable[..., Made]:
    def make(**changes: Any) -> Made:
        settings["endpoints"] = {"imds": metadata.url, "autoscaling": hooks.url}
        settings.update(changes)
        read = parse_settings(json.dumps(settings))
        clock, http = FakeClock(), UrllibHttp()
        clock.s = datetime.now(UTC).timestamp()
        client = Metadata(http, clock, metadata.url)
        around = Around(clock)
        aws = Aws(http, clock, client, REGION, read.endpoints)
        return Agent(read, client, aws, clock, around, f"{metadata.instance.local_hostname}:9094"), around, clock

    return make


def after_looks(metadata: MetadataServer, looks: int, change: Callable[[], None]) -> Callable[[], None]:
    """A world in which something happens after so many waits."""
    left = [looks]

    def slept() -> None:
        left[0] -= 1
        if left[0] == 0:
            change()

    return slept


def test_a_broker_with_a_certificate_is_drained_by_whoever_shows_it(
    agent_of: Callable[..., Made], metadata: MetadataServer, hooks: LifecycleServer
) -> None:
    arn = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:firn-AbCdEf"
    authority = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
    agent, around, clock = agent_of(security={"secret": arn, "ca_pem": authority})
    hooks.begin("firn-0", "drain", INSTANCE)
    clock.on_sleep = after_looks(metadata, 1, lambda: setattr(metadata.instance, "lifecycle_state", "Terminated"))
    agent.run()
    [command] = around.commands
    assert command[1:4] == ("drain", "--bootstrap", "ip-10-42-0-5.eu-central-1.compute.internal:9094")
    [environment] = around.environments
    assert environment["FIRN_CLIENT_CONFIG"] == "/etc/firn/machine.properties"
    assert hooks.done == {("firn-0", "drain", INSTANCE): "CONTINUE"}


def test_a_machine_that_stays_is_left_alone(agent_of: Callable[..., Made], metadata: MetadataServer) -> None:
    agent, around, _ = agent_of()
    metadata.instance.lifecycle_state = "InService"
    assert agent.look() is None
    metadata.instance.lifecycle_state = None
    assert agent.look() is None
    assert around.commands == []


def test_the_groups_wish_drains_the_broker_and_completes_the_hook(
    agent_of: Callable[..., Made], metadata: MetadataServer, hooks: LifecycleServer
) -> None:
    agent, around, clock = agent_of()
    hooks.begin("firn-0", "drain", INSTANCE)

    def wished() -> None:
        metadata.instance.lifecycle_state = "Terminated"

    clock.on_sleep = after_looks(metadata, 3, wished)
    agent.run()
    assert around.timeout_s == DRAIN_S_MAX
    assert hooks.done == {("firn-0", "drain", INSTANCE): "CONTINUE"}
    assert "Drained in 5.0 s: everything tiered is in the store." in around.lines


def test_a_drain_may_take_as_long_as_the_groups_hook_can_hold_the_machine() -> None:
    terraform = Path(__file__).parents[3] / "infra" / "terraform"
    [timeout_s] = re.findall(
        r"(?m)^\s*heartbeat_timeout_s\s*=\s*(\d+)$", (terraform / "modules/broker/main.tf").read_text()
    )
    assert 100 * int(timeout_s) == DRAIN_S_MAX, "AWS ends a hook after a hundred time-outs"
    assert f"var.drain_timeout_s <= {DRAIN_S_MAX:.0f}" in (terraform / "variables.tf").read_text()
    assert VOLUME_WAIT_S > DRAIN_S_MAX, "the next machine outwaits the drain of the old one"


def test_a_long_drain_keeps_the_hook_open(
    agent_of: Callable[..., Made], metadata: MetadataServer, hooks: LifecycleServer
) -> None:
    agent, around, _ = agent_of()
    hooks.begin("firn-0", "drain", INSTANCE)
    metadata.instance.lifecycle_state = "Terminated"
    around.takes = (200.0, DRAINED)
    agent.run()
    assert hooks.heartbeats == [("firn-0", "drain", INSTANCE)] * 3


@pytest.mark.parametrize(("code", "words"), [(NOT_WHOLE, "Not drained"), (1, "failed with exit code 1")])
def test_a_drain_that_is_not_whole_is_told_and_the_machine_ends_all_the_same(
    agent_of: Callable[..., Made], metadata: MetadataServer, hooks: LifecycleServer, code: int, words: str
) -> None:
    agent, around, _ = agent_of()
    hooks.begin("firn-0", "drain", INSTANCE)
    metadata.instance.lifecycle_state = "Terminated"
    around.takes = (5.0, code)
    agent.run()
    assert any(words in line for line in around.lines)
    assert len(hooks.done) == 1


def test_a_spot_notice_leaves_the_drain_the_time_that_is_left(
    agent_of: Callable[..., Made], metadata: MetadataServer
) -> None:
    agent, around, clock = agent_of()
    metadata.instance.spot_action = "terminate"
    metadata.instance.spot_time_s = clock.s + 90
    agent.run()
    assert 90 - RESERVE_S - 2 <= around.timeout_s <= 90 - RESERVE_S


def test_a_spot_notice_that_came_late_still_drains(agent_of: Callable[..., Made], metadata: MetadataServer) -> None:
    agent, around, clock = agent_of()
    metadata.instance.spot_action = "stop"
    metadata.instance.spot_time_s = clock.s - 5
    agent.run()
    assert around.timeout_s == 1


@pytest.mark.parametrize("text", ["reclaimed soon", '"terminate"', '{"action": "stop", "time": "tomorrow"}'])
def test_a_spot_notice_that_cannot_be_read_is_one_all_the_same(
    agent_of: Callable[..., Made], monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    agent, around, _ = agent_of()
    get = Metadata.get

    def answer(self: Metadata, path: str) -> str | None:
        return text if path == "meta-data/spot/instance-action" else get(self, path)

    monkeypatch.setattr(Metadata, "get", answer)
    notice = agent.look()
    assert notice is not None
    agent.act(notice)
    assert around.timeout_s == SPOT_S - RESERVE_S
    assert any(line.startswith("The spot notice cannot be read: ") for line in around.lines)


def test_a_drain_that_hangs_is_stopped(agent_of: Callable[..., Made], metadata: MetadataServer) -> None:
    agent, around, clock = agent_of()
    metadata.instance.spot_action = "terminate"
    metadata.instance.spot_time_s = clock.s + 60
    around.takes = (None, 0)
    agent.run()
    assert around.drains[0].stopped
    assert "The drain did not end in its time." in around.lines


def test_metadata_that_is_away_for_a_while_is_told_once(
    agent_of: Callable[..., Made], metadata: MetadataServer
) -> None:
    agent, around, clock = agent_of()
    metadata.instance.on = False
    assert agent.look() is None
    assert agent.look() is None
    metadata.instance.on = True
    metadata.instance.spot_action = "terminate"
    metadata.instance.spot_time_s = clock.s + 60
    assert agent.look() is not None
    assert len([line for line in around.lines if "cannot be read" in line]) == 1


def test_a_rebalance_recommendation_ends_nothing(agent_of: Callable[..., Made], metadata: MetadataServer) -> None:
    agent, around, _ = agent_of()
    metadata.instance.rebalance = True
    assert agent.look() is None
    assert agent.look() is None
    assert len(around.lines) == 1


@pytest.mark.parametrize(("code", "words"), [(DRAINED, "Stopped in 1.0 s"), (1, "ended with exit code 1")])
def test_a_broker_without_a_disk_hears_of_spot_itself_and_is_stopped_for_the_group(
    agent_of: Callable[..., Made], metadata: MetadataServer, hooks: LifecycleServer, code: int, words: str
) -> None:
    data = {"kind": "root", "volume_id": None, "filesystem": "xfs"}
    agent, around, _ = agent_of(node_id="auto", zone=None, data=data, advertised=None)
    metadata.instance.spot_action = "terminate"
    assert agent.look() is None
    hooks.begin("firn-0", "drain", INSTANCE)
    metadata.instance.lifecycle_state = "Terminated"
    around.takes = (1.0, code)
    agent.run()
    assert len(around.commands) == 1
    assert hooks.done == {("firn-0", "drain", INSTANCE): "CONTINUE"}
    assert any(words in line and "all that was acknowledged is in the bucket" in line for line in around.lines)


def test_one_of_several_brokers_waits_for_replicas_and_then_stops_without_a_drain(
    agent_of: Callable[..., Made], metadata: MetadataServer, hooks: LifecycleServer
) -> None:
    agent, around, _ = agent_of(advertised=None, node_id=2)
    hooks.begin("firn-0", "drain", INSTANCE)
    metadata.instance.lifecycle_state = "Terminated"
    around.takes = (100.0, 0)
    agent.run()
    wait, stop = around.commands
    assert wait[1:7] == ("cluster", "wait", "--bootstrap", "127.0.0.1:9092", "--steady", "30")
    assert float(wait[8]) < DRAIN_S_MAX, "time is kept for the stop"
    assert wait[9:] == ("--leaving", "2"), "its own replicas may be behind"
    assert stop[1:4] == ("stop", "--data-dir", "/var/lib/firn/data")
    assert hooks.done == {("firn-0", "drain", INSTANCE): "CONTINUE"}
    assert ("firn-0", "drain", INSTANCE) in hooks.heartbeats, "the group waits as long as the replicas take"
    assert "All replicas were in sync after 100.0 s." in around.lines


def test_brokers_that_are_to_end_at_once_wait_for_times_of_their_own(
    agent_of: Callable[..., Made], metadata: MetadataServer, hooks: LifecycleServer
) -> None:
    asked = set()
    for node_id in range(3):
        agent, around, _ = agent_of(advertised=None, node_id=node_id)
        hooks.begin("firn-0", "drain", INSTANCE)
        metadata.instance.lifecycle_state = "Terminated"
        agent.run()
        asked.add(float(around.commands[0][6]))
    assert len(asked) == 3
    assert min(abs(one - other) for one in asked for other in asked if one != other) >= 10


def test_replicas_that_never_come_back_do_not_keep_the_machine(
    agent_of: Callable[..., Made], metadata: MetadataServer, hooks: LifecycleServer
) -> None:
    agent, around, _ = agent_of(advertised=None)
    hooks.begin("firn-0", "drain", INSTANCE)
    metadata.instance.lifecycle_state = "Terminated"
    around.takes = (5.0, NOT_WHOLE)
    agent.run()
    assert [command[1] for command in around.commands] == ["cluster", "stop"]
    assert "After 5.0 s not all replicas are in sync. This broker stops all the same." in around.lines
    assert hooks.done == {("firn-0", "drain", INSTANCE): "CONTINUE"}


def test_a_cluster_that_cannot_be_asked_is_asked_again_and_the_hook_stays_open(
    agent_of: Callable[..., Made], metadata: MetadataServer, hooks: LifecycleServer
) -> None:
    agent, around, clock = agent_of(advertised=None)
    hooks.begin("firn-0", "drain", INSTANCE)
    metadata.instance.lifecycle_state = "Terminated"
    around.takes = (1.0, 1)
    clock.on_sleep = after_looks(metadata, 300, lambda: setattr(around, "takes", (1.0, 0)))
    agent.run()
    assert {command[1] for command in around.commands[:-1]} == {"cluster"}
    assert len(around.commands) > 50
    assert around.commands[-1][1] == "stop"
    assert ("firn-0", "drain", INSTANCE) in hooks.heartbeats
    assert any("All replicas were in sync" in line for line in around.lines)


def test_a_release_without_the_option_for_a_leaving_broker_is_asked_without_it(
    agent_of: Callable[..., Made], metadata: MetadataServer, hooks: LifecycleServer
) -> None:
    agent, around, clock = agent_of(advertised=None)
    hooks.begin("firn-0", "drain", INSTANCE)
    metadata.instance.lifecycle_state = "Terminated"
    around.takes = (1.0, USAGE)
    clock.on_sleep = after_looks(metadata, 5, lambda: setattr(around, "takes", (1.0, 0)))
    agent.run()
    first, *later = around.commands[:-1]
    assert "--leaving" in first
    assert later
    assert ["--leaving" in command for command in later] == [number % 2 == 1 for number in range(len(later))]
    assert any("All replicas were in sync" in line for line in around.lines)


def test_one_of_several_brokers_on_spot_stops_at_once(agent_of: Callable[..., Made], metadata: MetadataServer) -> None:
    agent, around, _ = agent_of(advertised=None)
    metadata.instance.spot_action = "terminate"
    agent.run()
    [stop] = around.commands
    assert stop[1] == "stop"


INSTANCE_STORE = {"kind": "instance-store", "volume_id": None, "filesystem": "xfs"}


def test_one_of_several_brokers_whose_disk_goes_with_the_machine_waits_for_replicas_and_is_drained(
    agent_of: Callable[..., Made], metadata: MetadataServer, hooks: LifecycleServer
) -> None:
    agent, around, _ = agent_of(advertised=None, data=INSTANCE_STORE, accept_loss_of_untiered=True)
    hooks.begin("firn-0", "drain", INSTANCE)
    metadata.instance.lifecycle_state = "Terminated"
    around.takes = (100.0, 0)
    agent.run()
    wait, drain = around.commands
    assert wait[1:3] == ("cluster", "wait")
    assert drain[1:5] == ("drain", "--data-dir", "/var/lib/firn/data", "--timeout")
    assert float(drain[5]) == DRAIN_S_MAX - 100, "the time of the wait is gone"
    assert "Drained in 100.0 s: everything tiered is in the store." in around.lines
    assert hooks.done == {("firn-0", "drain", INSTANCE): "CONTINUE"}


def test_one_of_several_brokers_on_spot_whose_disk_goes_with_the_machine_is_drained_at_once(
    agent_of: Callable[..., Made], metadata: MetadataServer
) -> None:
    agent, around, clock = agent_of(advertised=None, data=INSTANCE_STORE, accept_loss_of_untiered=True)
    metadata.instance.spot_action = "terminate"
    metadata.instance.spot_time_s = clock.s + 90
    agent.run()
    assert 90 - RESERVE_S - 2 <= around.timeout_s <= 90 - RESERVE_S


@pytest.mark.parametrize(
    ("listens", "end_s"),
    [
        (lambda s: False, DEAD_S),  # stopped
        (lambda s: s % 15 >= 10, DEAD_S),  # starts, listens for 5 s and ends, again and again
        (lambda s: s < 500, 500 + DEAD_S),  # ends while it waits for others
    ],
)
@pytest.mark.parametrize("takes", [(None, 0), (0.0, 1)], ids=["the command waits", "the command fails"])
def test_a_dead_broker_does_not_hold_its_machine(
    agent_of: Callable[..., Made],
    metadata: MetadataServer,
    hooks: LifecycleServer,
    listens: Callable[[float], bool],
    end_s: float,
    takes: tuple[float | None, int],
) -> None:
    agent, around, clock = agent_of(advertised=None)
    hooks.begin("firn-0", "drain", INSTANCE)
    metadata.instance.lifecycle_state = "Terminated"
    around.takes, around.listens, begun_s = takes, listens, clock.s
    agent.run()
    assert around.commands[-1][1] == "stop"
    assert end_s <= around.begun_s[-1] - begun_s <= end_s + 20
    assert all(each.stopped for each in around.drains[:-1] if each.ended() is None), "no command is left behind"
    assert any("This machine's broker has not answered for 60 s" in line for line in around.lines)
    assert hooks.done == {("firn-0", "drain", INSTANCE): "CONTINUE"}


def test_a_broker_that_is_started_anew_now_and_then_waits_for_replicas(
    agent_of: Callable[..., Made], metadata: MetadataServer, hooks: LifecycleServer
) -> None:
    agent, around, _ = agent_of(advertised=None)
    hooks.begin("firn-0", "drain", INSTANCE)
    metadata.instance.lifecycle_state = "Terminated"
    around.takes, around.listens = (1000.0, 0), lambda s: s % 200 >= 50
    agent.run()
    assert "All replicas were in sync after 1000.0 s." in around.lines


def test_a_broker_that_listens_is_told_from_one_that_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        monkeypatch.setattr(firn_agent, "PLAIN", listener.getsockname())
        assert not SystemSurroundings().broker_listens()
        listener.listen()
        assert SystemSurroundings().broker_listens()


@pytest.mark.parametrize(
    ("code", "words"), [(NOT_WHOLE, "not all replicas are in sync"), (1, "`firn cluster wait` failed with exit code 1")]
)
def test_a_wait_that_takes_all_of_its_time_is_told(
    agent_of: Callable[..., Made], metadata: MetadataServer, hooks: LifecycleServer, code: int, words: str
) -> None:
    agent, around, _ = agent_of(advertised=None)
    hooks.begin("firn-0", "drain", INSTANCE)
    metadata.instance.lifecycle_state = "Terminated"
    around.takes = (DRAIN_S_MAX - STOP_S - 1, code)
    agent.run()
    assert any(words in line and "This broker stops all the same." in line for line in around.lines)
    assert not any("None" in line for line in around.lines)


def test_a_machine_for_http_completes_its_hook_without_a_drain(
    agent_of: Callable[..., Made], metadata: MetadataServer, hooks: LifecycleServer
) -> None:
    servers = {"bootstrap.servers": "b:9092"}
    agent, around, _ = agent_of(role="http", node_id=None, data=None, advertised=None, settings=servers)
    hooks.begin("firn-0", "drain", INSTANCE)
    metadata.instance.lifecycle_state = "Terminated"
    agent.run()
    assert around.commands == []
    assert len(hooks.done) == 1


def test_a_hook_that_nobody_waits_for_is_told_and_not_an_end(
    agent_of: Callable[..., Made], metadata: MetadataServer
) -> None:
    agent, around, _ = agent_of()
    metadata.instance.lifecycle_state = "Terminated"
    agent.run()
    assert any("does not take CompleteLifecycleAction" in line for line in around.lines)


def test_settings_that_are_no_text_stop_the_agent_with_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "bootstrap.json"
    path.write_bytes(b'{"cluster": "\xff"}')
    assert main(["--settings", str(path)]) == 1
    [line] = capsys.readouterr().out.splitlines()
    assert "bootstrap.json is not UTF-8 text" in line


def test_a_mistake_of_the_agent_is_one_line(
    settings: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(self: Agent) -> None:
        raise AttributeError("nobody thought of this")

    monkeypatch.setattr(Agent, "run", run)
    (tmp_path / "bootstrap.json").write_text(json.dumps(settings))
    assert main(["--settings", str(tmp_path / "bootstrap.json")]) == 1
    [line] = capsys.readouterr().out.splitlines()
    assert "this should not happen: AttributeError: nobody thought of this" in line
