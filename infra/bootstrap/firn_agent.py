"""Watches what EC2 says of this machine, and drains the broker before it ends.

    python3 firn_agent.py --settings /etc/firn/bootstrap.json

Two notices end a machine: the auto-scaling group wants it away (``autoscaling/target-lifecycle-state`` is ``Terminated``), or
a spot machine is reclaimed (``spot/instance-action``), with about 120 s left. Either way the broker is told to drain: it
refuses writes, uploads what is on its disk only and stops. The group's terminate hook holds the machine until then;
heartbeats keep the hook open. Nothing holds a spot machine: the drain gets the time that is left.

A broker without a disk (node id ``auto``) asks for spot notices itself, so the agent of its machine leaves them to it.

If the group wants the machine of one of several brokers away, the agent first waits until all replicas of all partitions are in
sync. Replicas of the machine's own broker may be missing, because its stop takes no replica in sync away. So machines that are
ended one after the other lose no replica. Of two that are ended at the same time one usually stops first, but nothing guarantees
it: the agents do not talk to each other. The wait ends early if the machine's own broker is dead.

Then a broker whose disk goes with the machine is drained. A broker with a volume only stops, and gives its leaders to others: its
volume outlives the machine, and others have replicas of all topics with more than one.

Standard library only, Python 3.11.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Final, Protocol

from firn_aws import METADATA, Aws, AwsError, Clock, Metadata, SystemClock, Unreachable, UrllibHttp
from firn_security import OWN_CLIENT
from firn_settings import DRAIN_S_MAX, SETTINGS, Refused, Settings, read_settings

LOOK_S: Final = 2.0
"""Between two looks at the metadata. AWS advises five seconds at most for spot notices."""
SPOT_S: Final = 120.0
"""What a spot machine has left if its notice does not say."""
RESERVE_S: Final = 10.0
"""Kept back of a spot machine's time for the end of the broker."""
DRAIN_POLL_S: Final = 0.5
DRAINED: Final = 0
USAGE: Final = 2
"""Exit code of ``firn`` for an option that it does not know."""
NOT_WHOLE: Final = 3
"""Exit code of ``firn drain`` if something was still on the disk alone when its time was up."""
FIRN: Final = "/opt/firn/current/bin/firn"
STEADY_S: Final = 10.0
"""How long all replicas must have been in sync. Neighbouring node ids wait for different multiples of it, so of two that are to end
at the same time one stops first, and the other sees that replicas are missing. Two whose notices lie apart by the difference, or
whose node ids differ by ``STEADY_STEPS``, may stop together."""
STEADY_STEPS: Final = 8
STOP_S: Final = 600.0
"""Kept of the group's time for the stop or the drain of a broker that has waited for others."""
PLAIN: Final = ("127.0.0.1", 9092)
"""Where every broker of a machine listens, with or without logins."""
PROBE_S: Final = 1.0
DEAD_S: Final = 60.0
"""A broker that has refused connections for so long is dead. An ordinary start is shorter."""
BACK_S: Final = 30.0
"""A broker that takes connections for so long without a break lives again."""


class Running(Protocol):
    """A command under way."""

    def ended(self) -> int | None:
        """Its exit code; None while it runs."""

    def stop(self) -> None: ...


class Surroundings(Protocol):
    """What the agent does to the machine."""

    def begin(self, command: Sequence[str], environment: Mapping[str, str]) -> Running: ...

    def broker_listens(self) -> bool:
        """Whether this machine's broker takes a connection now."""

    def say(self, text: str) -> None: ...


class SystemSurroundings:
    """The machine. What a command prints goes to the journal beside the agent's own lines."""

    def begin(self, command: Sequence[str], environment: Mapping[str, str]) -> Running:
        env = {"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C.UTF-8", "PYTHONUNBUFFERED": "1", **environment}
        return _Process(subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.STDOUT, env=env, cwd="/"))

    def broker_listens(self) -> bool:
        try:
            with socket.create_connection(PLAIN, timeout=PROBE_S):
                return True
        except OSError:
            return False

    def say(self, text: str) -> None:
        sys.stdout.write(" ".join(text.split()) + "\n")
        sys.stdout.flush()


class _Process:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def ended(self) -> int | None:
        return self._process.poll()

    def stop(self) -> None:
        self._process.terminate()


@dataclass(frozen=True, slots=True)
class Notice:
    """Why this machine ends, and how long the drain may take."""

    why: str
    budget_s: float
    hook: bool
    """Whether the auto-scaling group waits for its terminate hook."""


class Pulse:
    """Tells from probes of its listener whether a broker is dead. A broker that starts again and again counts as dead, though it
    listens between."""

    def __init__(self) -> None:
        self.dead = False
        self._silent_since_s: float | None = None
        self._listens_since_s: float | None = None

    def take(self, listens: bool, now_s: float) -> bool:
        """Take a probe. Returns: whether the broker is dead."""
        if listens:
            self._listens_since_s = now_s if self._listens_since_s is None else self._listens_since_s
            if now_s - self._listens_since_s >= BACK_S:
                self._silent_since_s = None
            return self.dead
        self._listens_since_s = None
        self._silent_since_s = now_s if self._silent_since_s is None else self._silent_since_s
        self.dead = now_s - self._silent_since_s >= DEAD_S
        return self.dead


class Agent:
    """Looks, and acts once. ``run`` returns when the machine is ready to end."""

    def __init__(
        self,
        settings: Settings,
        metadata: Metadata,
        aws: Aws,
        clock: Clock,
        surroundings: Surroundings,
        own_listener: str = "",
    ) -> None:
        """``own_listener``: where this machine's broker lets commands in that show its certificate, if it has one."""
        self._settings = settings
        self._metadata = metadata
        self._aws = aws
        self._clock = clock
        self._surroundings = surroundings
        self._own_listener = own_listener
        self._rebalance_told = False
        self._unreachable_told = False
        self._beat_s = 0.0
        """When the group was told last that this machine still needs time."""

    def run(self) -> None:
        notices = "" if self._settings.without_disk else "for spot notices, and "
        self._surroundings.say(f"Watching {notices}for the auto-scaling group to end this machine.")
        notice = None
        while notice is None:
            notice = self.look()
            if notice is None:
                self._clock.sleep(LOOK_S)
        self.act(notice)

    def look(self) -> Notice | None:
        """What the metadata says now. A metadata service that is away for a moment is asked again."""
        try:
            notice = (
                self._group_notice() if self._settings.without_disk else self._spot_notice() or self._group_notice()
            )
            self._tell_rebalance()
        except (Unreachable, AwsError, ValueError) as error:
            if not self._unreachable_told:
                self._surroundings.say(f"Instance metadata cannot be read: {error}")
            self._unreachable_told = True
            return None
        self._unreachable_told = False
        return notice

    def _spot_notice(self) -> Notice | None:
        text = self._metadata.get("meta-data/spot/instance-action")
        if text is None:
            return None
        left_s, action = SPOT_S, "terminate"
        try:
            says = json.loads(text)
            action = says.get("action", action)
            if says.get("time"):
                end_s = datetime.fromisoformat(str(says["time"]).replace("Z", "+00:00")).timestamp()
                left_s = end_s - self._clock.now_s()
        except (ValueError, AttributeError):
            # Only a machine that is reclaimed has a notice. What it says matters less than that it is there.
            self._surroundings.say(f"The spot notice cannot be read: {text[:200]!r}. {SPOT_S:.0f} s are assumed.")
        why = f"EC2 reclaims this spot machine in {max(left_s, 0):.0f} s ({action})"
        return Notice(why, max(left_s - RESERVE_S, 1.0), hook=False)

    def _group_notice(self) -> Notice | None:
        state = (self._metadata.get("meta-data/autoscaling/target-lifecycle-state") or "").strip()
        if state != "Terminated":
            return None
        return Notice("The auto-scaling group ends this machine", DRAIN_S_MAX, hook=True)

    def _tell_rebalance(self) -> None:
        if not self._rebalance_told and self._metadata.get("meta-data/events/recommendations/rebalance") is not None:
            self._rebalance_told = True
            self._surroundings.say(
                "EC2 says that this spot machine may be reclaimed soon. The broker goes on until EC2 gives notice."
            )

    def act(self, notice: Notice) -> None:
        """Drain, then complete the terminate hook. A failed drain is logged; the machine ends either way."""
        self._beat_s = self._clock.monotonic_s()
        if self._settings.one_of_several:
            self._leave(notice)
        elif self._settings.role == "broker":
            self._drain(notice)
        else:
            self._surroundings.say(f"{notice.why}. This machine has nothing to drain: it only serves HTTP.")
        if notice.hook:
            self._complete()

    def _leave(self, notice: Notice) -> None:
        """End one of several brokers, once all replicas are in sync if there is time for that: drained if its disk goes too."""
        begun_s = self._clock.monotonic_s()
        if notice.hook:
            self._surroundings.say(f"{notice.why}: waiting until all replicas are in sync.")
            self._surroundings.say(self._wait_for_replicas(notice))
        left_s = notice.budget_s - (self._clock.monotonic_s() - begun_s)
        data = self._settings.data
        if data is not None and data.kind == "ebs":
            self._stop(replace(notice, budget_s=left_s))
        else:
            self._drain(replace(notice, budget_s=left_s))

    def _stop(self, notice: Notice) -> None:
        self._surroundings.say(
            f"{notice.why}: stopping without a drain. The volume stays, and topics with several replicas go on elsewhere."
        )
        begun_s = self._clock.monotonic_s()
        stop = (FIRN, "stop", "--data-dir", "/var/lib/firn/data", "--timeout", f"{notice.budget_s:.0f}")
        code = self._run(notice, stop, notice.budget_s)
        took_s = self._clock.monotonic_s() - begun_s
        ended = f"Stopped in {took_s:.1f} s" if code == 0 else _failed("stop", code)
        self._surroundings.say(f"{ended}: the data on the volume is unchanged.")

    def _wait_for_replicas(self, notice: Notice) -> str:
        """Wait until all replicas are in sync. Returns: how that ended, in a sentence.

        A question that fails says nothing of the cluster, so it is asked again. The replicas of a dead broker are missing until its
        machine is replaced, so the wait ends if the machine's own broker is dead. A release that does not know ``--leaving``
        waits for the broker's own replicas, too.
        """
        steady_s = STEADY_S * (1 + self._settings.node_id % STEADY_STEPS)
        begun_s, pulse = self._clock.monotonic_s(), Pulse()
        code: int | None = None
        own: tuple[str, ...] = ("--leaving", str(self._settings.node_id))
        leaving = own
        left_s = notice.budget_s - STOP_S
        while left_s > 0 and not pulse.dead:
            how = (
                *self._broker(":".join(map(str, PLAIN))),
                "--steady",
                f"{steady_s:.0f}",
                "--timeout",
                f"{left_s:.0f}",
                *leaving,
            )
            code = self._run(notice, (FIRN, "cluster", "wait", *how), left_s + RESERVE_S, lambda: self._dead(pulse))
            if code in (0, NOT_WHOLE, None) or self._dead(pulse):
                break
            leaving = () if code == USAGE and leaving else own  # another cause may have that code
            self._clock.sleep(LOOK_S)
            left_s = begun_s + notice.budget_s - STOP_S - self._clock.monotonic_s()
        waited_s = self._clock.monotonic_s() - begun_s
        if code == 0:
            return f"All replicas were in sync after {waited_s:.1f} s."
        if pulse.dead:
            return f"This machine's broker has not answered for {DEAD_S:.0f} s: the wait ends after {waited_s:.1f} s."
        if code in (NOT_WHOLE, None):
            return f"After {waited_s:.1f} s not all replicas are in sync. This broker stops all the same."
        return f"{_failed('cluster wait', code)} for {waited_s:.1f} s. This broker stops all the same."

    def _dead(self, pulse: Pulse) -> bool:
        return pulse.take(self._surroundings.broker_listens(), self._clock.monotonic_s())

    def _broker(self, plain: str) -> tuple[str, ...]:
        """How a command asks this machine's broker. ``plain``: its address where there are no logins."""
        return ("--bootstrap", plain if self._settings.security is None else self._own_listener)

    @property
    def _environment(self) -> dict[str, str]:
        settings = self._settings
        environment = {"AWS_REGION": settings.region, "AWS_DEFAULT_REGION": settings.region}
        if "imds" in settings.endpoints:
            environment["AWS_EC2_METADATA_SERVICE_ENDPOINT"] = settings.endpoints["imds"]
        if settings.security is not None:
            environment["FIRN_CLIENT_CONFIG"] = OWN_CLIENT
        return environment

    def _run(
        self, notice: Notice, command: Sequence[str], timeout_s: float, futile: Callable[[], bool] = lambda: False
    ) -> int | None:
        """Run a command, and keep the group's hook open meanwhile.

        Returns: its exit code; None if it was stopped, after its time or as soon as it was ``futile``.
        """
        lifecycle = self._settings.lifecycle
        begun_s = self._clock.monotonic_s()
        running = self._surroundings.begin(command, self._environment)
        while (code := running.ended()) is None:
            self._clock.sleep(DRAIN_POLL_S)
            now_s = self._clock.monotonic_s()
            if now_s >= begun_s + timeout_s or futile():
                running.stop()
                return None
            if notice.hook and lifecycle is not None and now_s - self._beat_s >= lifecycle.heartbeat_s:
                self._beat_s = now_s
                self._hook("RecordLifecycleActionHeartbeat")
        return code

    def _drain(self, notice: Notice) -> None:
        settings = self._settings
        self._surroundings.say(f"{notice.why}: draining, {notice.budget_s:.0f} s at most.")
        begun_s = self._clock.monotonic_s()
        broker = ("--data-dir", "/var/lib/firn/data") if settings.security is None else self._broker("")
        command = (FIRN, "drain", *broker, "--timeout", f"{notice.budget_s:.0f}")
        code = self._run(notice, command, notice.budget_s + RESERVE_S)
        if code is None:
            self._surroundings.say("The drain did not end in its time.")
            return
        took_s = self._clock.monotonic_s() - begun_s
        if settings.without_disk:
            ended = f"Stopped in {took_s:.1f} s" if code == DRAINED else f"`firn drain` ended with exit code {code}"
            what = f"{ended}: all that was acknowledged is in the bucket."
        elif code == DRAINED:
            what = f"Drained in {took_s:.1f} s: everything tiered is in the store."
        elif code == NOT_WHOLE:
            what = f"Not drained after {took_s:.1f} s: what the lines above name is on the data volume only."
        else:
            what = f"`firn drain` failed with exit code {code}: what was not tiered is on the data volume only."
        self._surroundings.say(what)

    def _complete(self) -> None:
        lifecycle = self._settings.lifecycle
        if lifecycle is None or not lifecycle.terminate_hook:
            return
        if self._hook("CompleteLifecycleAction", LifecycleActionResult="CONTINUE"):
            self._surroundings.say(f"Hook {lifecycle.terminate_hook} is complete: this machine may end.")

    def _hook(self, action: str, **more: str) -> bool:
        lifecycle = self._settings.lifecycle
        if lifecycle is None or not lifecycle.terminate_hook:
            return False
        try:
            self._aws.query(
                "autoscaling",
                action,
                AutoScalingGroupName=lifecycle.autoscaling_group,
                LifecycleHookName=lifecycle.terminate_hook,
                InstanceId=self._metadata.need("meta-data/instance-id"),
                **more,
            )
        except (AwsError, Unreachable) as error:
            self._surroundings.say(f"Auto Scaling does not take {action} of hook {lifecycle.terminate_hook}: {error}")
            return False
        return True


def _failed(command: str, code: int | None) -> str:
    """The beginning of a sentence. ``code``: None if the command was stopped after its time."""
    return (
        f"`firn {command}` did not end in its time"
        if code is None
        else f"`firn {command}` failed with exit code {code}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="firn_agent", description="Drain this machine's broker before EC2 ends it.")
    parser.add_argument("--settings", type=Path, default=Path(SETTINGS), help="bootstrap.json of the launch template")
    options = parser.parse_args(arguments)
    surroundings, clock, http = SystemSurroundings(), SystemClock(), UrllibHttp()
    try:
        settings = read_settings(options.settings)
    except (Refused, OSError) as error:
        surroundings.say(f"The agent does not start: {error}")
        return 1
    metadata = Metadata(http, clock, settings.endpoints.get("imds", METADATA))
    aws = Aws(http, clock, metadata, settings.region, settings.endpoints)
    try:
        Agent(settings, metadata, aws, clock, surroundings, os.environ.get("FIRN_BOOTSTRAP", "")).run()
    except Exception as error:  # noqa: BLE001 - one line; systemd starts the agent again
        surroundings.say(f"The agent stops: this should not happen: {type(error).__name__}: {error}. Please report it.")
        return 1
    # The notice stays, so there is nothing more to look for. EC2 ends the machine, and systemd this process with it.
    surroundings.say("Waiting for the end of this machine.")
    while True:
        clock.sleep(3600)


if __name__ == "__main__":
    sys.exit(main())
