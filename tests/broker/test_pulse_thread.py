"""The thread for pulses: when it runs, how it reaches others, and how it ends (ADR 0023, L6)."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from app.broker.peers.control_link import KafkaControlLink
from app.broker.peers.places import KafkaPlaces
from app.broker.peers.pulse_thread import PulseThread
from app.broker.security.first_users import FirstUser, write_first_users
from app.broker.security.listener_doors import inter_broker_dial
from app.configs import BrokerConfig
from app.core.errors import ConfigError, ErrorCode
from app.machine.files import PosixFileSystem
from app.metadata.changes.features import FeatureAsked
from app.metadata.image.records import LEVEL_FEATURE, LEVEL_MAX, PULSE_LEVEL
from app.metadata.peers.control import PulseRequest
from app.metadata.peers.pulses import TurnBoard
from app.security.scram import ScramMechanism, credential_of, salted_password
from tests.broker.hung_pulses import Hangs, board
from tests.support.broker import RunningBroker
from tests.support.changing import update_features
from tests.support.secured import certificates, listener, security
from tests.support.several import broker_on
from tests.support.waiting import until


class Sender:
    """Stands for a thread; notes what is done to it."""

    def __init__(self) -> None:
        self.boards: list[TurnBoard] = []
        self.stops = 0
        self.error: BaseException | None = None

    def start(self, board: TurnBoard) -> Sender:
        self.boards.append(board)
        return self

    async def stop(self) -> None:
        self.stops += 1


async def test_there_is_a_thread_only_while_there_is_another_broker(tmp_path: Path) -> None:
    sender = Sender()
    async with broker_on(tmp_path, "a", new_level=LEVEL_MAX, start_pulses=sender.start) as first:
        assert sender.boards == []
        async with broker_on(tmp_path, "b", new_level=LEVEL_MAX):
            await until(lambda: sender.boards)
            turn = sender.boards[0].turn
            assert turn is not None
            assert (turn.broker_id, [one.broker_id for one in turn.others]) == (1, [2])
            assert turn.controller_epoch == first.node.cluster.image.controller.epoch
            await until(lambda: sender.boards[0].turn is not turn)  # it is written anew
            assert sender.stops == 0
        await until(lambda: sender.stops)
    assert (len(sender.boards), sender.stops) == (1, 1)


async def test_the_thread_ends_with_the_broker(tmp_path: Path) -> None:
    sender = Sender()
    async with broker_on(tmp_path, "a", new_level=LEVEL_MAX):
        async with broker_on(tmp_path, "b", new_level=LEVEL_MAX, start_pulses=sender.start):
            await until(lambda: sender.boards)
            turn = sender.boards[0].turn
            assert turn is not None
            assert turn.controller is not None
            assert (turn.controller.broker_id, turn.controller_epoch) == (1, -1)
        assert sender.stops == 1


async def test_below_the_level_of_pulses_there_is_none_until_it_is_raised(tmp_path: Path) -> None:
    sender = Sender()
    async with (
        broker_on(tmp_path, "a", node_id=1, new_level=PULSE_LEVEL - 1, start_pulses=sender.start) as first,
        broker_on(tmp_path, "b"),
    ):
        await until(lambda: len(first.node.cluster.image.brokers) == 2)
        assert first.node.cluster.image.level == PULSE_LEVEL - 1
        assert sender.boards == []
        await update_features(first.node.membership.controller, [FeatureAsked(LEVEL_FEATURE, LEVEL_MAX)])
        await until(lambda: sender.boards)


async def test_a_thread_that_has_ended_by_a_fault_is_told_and_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.metadata.membership.member.PULSES_AGAIN_S", 0.01)
    sender = Sender()
    async with broker_on(tmp_path, "a", new_level=LEVEL_MAX, start_pulses=sender.start) as first:
        async with broker_on(tmp_path, "b", new_level=LEVEL_MAX):
            await until(lambda: sender.boards)
            sender.error = ConfigError("no certificate")
            await until(lambda: len(sender.boards) > 1)
            sender.error = None
        assert any("the thread for pulses has ended" in line and "no certificate" in line for line in first.lines)


async def test_pulses_go_by_the_tls_and_the_login_of_brokers(tmp_path: Path) -> None:
    folder = certificates(tmp_path / "c", "client")
    own = 'x required username="broker" password="broker-secret";'
    door = listener("SASL_SSL", folder, mechanisms="SCRAM-SHA-512", **{"scram-sha-512_sasl_jaas_config": own})
    door = replace(door, advertised_host="localhost")
    config = BrokerConfig(**security(door))
    salted = salted_password(ScramMechanism.SCRAM_SHA_512, "broker-secret", b"s" * 24, 4096)
    user = FirstUser("broker", 2, credential_of(ScramMechanism.SCRAM_SHA_512, salted, b"s" * 24, 4096))
    (tmp_path / "a").mkdir()
    write_first_users(PosixFileSystem(), str(tmp_path / "a" / "data"), [user])
    dial = inter_broker_dial(config)

    def start(board: TurnBoard) -> PulseThread:
        return PulseThread(board, lambda: KafkaControlLink(dial=inter_broker_dial(config)), now_s=time.perf_counter)

    async def join(stack: AsyncExitStack, name: str, node_id: int) -> RunningBroker:
        settings: dict[str, Any] = {
            "new_link": lambda: KafkaControlLink(dial=dial),
            "places": KafkaPlaces(dial=dial),
            "start_pulses": start,
            **security(door),
        }
        started = broker_on(tmp_path, name, node_id=node_id, new_level=LEVEL_MAX, **settings)
        return await stack.enter_async_context(started)

    async with AsyncExitStack() as stack:
        brokers = [await join(stack, "a", 1), await join(stack, "b", 2)]
        heard: dict[int, set[int]] = {1: set(), 2: set()}
        for node_id, broker in enumerate(brokers, 1):
            take = broker.node.context.pulsed
            assert take is not None

            def note(
                pulse: PulseRequest, node_id: int = node_id, take: Callable[[PulseRequest], ErrorCode] = take
            ) -> ErrorCode:
                heard[node_id].add(pulse.broker_id)
                return take(pulse)

            broker.node.context.pulsed = note
        await until(lambda: heard == {1: {2}, 2: {1}})


# --- the thread by itself ---------------------------------------------------------------------------------------------


async def test_a_thread_whose_pulse_is_not_answered_ends_when_it_is_stopped() -> None:
    link = Hangs()
    thread = PulseThread(board(), lambda: link, now_s=time.perf_counter)
    await until(lambda: link.asked)
    await thread.stop()
    await until(lambda: not thread._thread.is_alive())
    assert link.closed
    assert (link.asked, thread.error) == (1, None)


async def test_a_thread_that_is_stopped_before_it_has_begun_sends_nothing() -> None:
    links: list[Hangs] = []

    def new_link() -> Hangs:
        links.append(Hangs())
        return links[-1]

    threads = [PulseThread(board(), new_link, now_s=time.perf_counter) for _ in range(20)]
    for thread in threads:
        await thread.stop()
    await until(lambda: not any(thread._thread.is_alive() for thread in threads))
    assert all(link.closed for link in links)


async def test_a_thread_without_certificates_says_why_it_has_ended() -> None:
    def new_link() -> KafkaControlLink:
        raise ConfigError("no certificate")

    thread = PulseThread(board(), new_link, now_s=time.perf_counter)
    await until(lambda: thread.error is not None)
    assert str(thread.error) == "no certificate"
    await thread.stop()


STUCK = """
import asyncio, threading, time
from app.broker.peers.pulse_thread import PulseThread
from tests.broker.hung_pulses import Hangs, board

begun = threading.Event()

class Blocks(Hangs):
    async def pulse(self, to, asked):
        begun.set()
        time.sleep(600)

async def main():
    thread = PulseThread(board(), Blocks, now_s=time.perf_counter)
    while not begun.is_set():
        await asyncio.sleep(0.01)
    await thread.stop()

asyncio.run(main())
print("ended")
"""


def test_a_thread_that_is_stuck_keeps_no_interpreter_from_its_end() -> None:
    done = subprocess.run([sys.executable, "-c", STUCK], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "ended\n", "")
