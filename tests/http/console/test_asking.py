"""Requests of pages to brokers, on a virtual clock: each has a limit, and none delays another."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

from app.client.connection import KafkaConnection
from app.core.errors import BrokerUnavailable, ErrorCode, RequestRejected
from app.core.units import BrokerId
from app.http import gateway as gateways
from app.http.console import asking as limited
from app.http.console.asking import (
    ANY_S,
    BROKER_S,
    MARGIN_S,
    NOTHING_SENT,
    changed_by,
    in_time,
    of_broker,
    side_by_side,
    soon,
    together,
)
from tests.support.virtual_loop import run_virtual

T = TypeVar("T")

FIRST, SECOND, THIRD = BrokerId(1), BrokerId(2), BrokerId(3)
UNKNOWN = "It is not known whether the topic was made."
PATIENCE_S = gateways.PATIENCE_S


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits of the program: other tests of pages have longer ones."""
    monkeypatch.setattr(limited, "BROKER_S", BROKER_S)
    monkeypatch.setattr(limited, "ANY_S", ANY_S)
    monkeypatch.setattr(gateways, "PATIENCE_S", PATIENCE_S)


class Gateway:
    """Brokers that are reached after a time, or not at all."""

    def __init__(self, **reached_s: float) -> None:
        self._reached_s = {int(name.removeprefix("b")): seconds for name, seconds in reached_s.items()}
        self.cluster = self

    async def broker(self, node_id: BrokerId) -> Any:
        if node_id not in self._reached_s:
            raise BrokerUnavailable(f"Broker {node_id} is not reached.")
        await asyncio.sleep(self._reached_s[node_id])
        return SimpleNamespace(node_id=node_id)


def gateway(**reached_s: float) -> Any:
    return Gateway(**reached_s)


def asking(seconds: float, answer: T) -> Callable[[KafkaConnection], Awaitable[T]]:
    async def ask(_connection: KafkaConnection) -> T:
        await asyncio.sleep(seconds)
        return answer

    return ask


def timed(work: Callable[[], Coroutine[Any, Any, T]]) -> tuple[T | BaseException, float]:
    """The result of some work, or its error, and the seconds that it took."""

    async def main(loop: asyncio.AbstractEventLoop) -> tuple[T | BaseException, float]:
        try:
            return await work(), loop.time()
        except (BrokerUnavailable, RequestRejected) as error:
            return error, loop.time()
        finally:
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not [task for task in left if not task.done() and task.get_name() != "goes on"]

    return run_virtual(main, seconds_max=1_000)


# --- one broker ---------------------------------------------------------------------------------------------------------


def test_a_broker_is_asked_within_its_limit() -> None:
    assert timed(lambda: of_broker(gateway(b1=0.5), FIRST, asking(0.5, "answer"))) == ("answer", 1.0)


@pytest.mark.parametrize(("within_s", "limit_s", "text"), [(0.0, BROKER_S, "1.5 s"), (4.0, 4.0, "4 s")])
@pytest.mark.parametrize(("reached_s", "answers_s"), [(60, 0), (0, 60)])
def test_a_silent_broker_is_named(
    within_s: float, limit_s: float, text: str, reached_s: float, answers_s: float
) -> None:
    asked = asking(answers_s, "late")
    error, took_s = timed(lambda: of_broker(gateway(b1=reached_s), FIRST, asked, within_s=within_s))
    assert str(error).startswith(f"Broker 1 did not respond within {text}.")
    assert took_s == limit_s


def test_a_change_says_whether_it_may_have_been_made() -> None:
    def changed(node_id: BrokerId, answers_s: float) -> tuple[object, float]:
        return timed(lambda: changed_by(gateway(b1=0, b2=60), node_id, asking(answers_s, "made"), unknown=UNKNOWN))

    assert changed(FIRST, 0.5) == ("made", 0.5)
    error, took_s = changed(FIRST, 60)
    assert str(error).startswith("Broker 1 did not respond within 1.5 s.")
    assert str(error).endswith(UNKNOWN)
    assert took_s == BROKER_S
    for node_id in (SECOND, THIRD):
        error, _ = changed(node_id, 0)
        assert str(error).startswith(f"Broker {node_id} ")
        assert str(error).endswith(NOTHING_SENT)


# --- several ------------------------------------------------------------------------------------------------------------


def test_brokers_are_asked_side_by_side_and_the_silent_ones_are_named() -> None:
    async def ask(node_id: BrokerId, _connection: KafkaConnection) -> str:
        await asyncio.sleep(60 if node_id == SECOND else 1)
        return f"of {node_id}"

    told, took_s = timed(lambda: side_by_side(gateway(b1=0, b2=0, b4=0), (THIRD, SECOND, FIRST, BrokerId(4)), ask))
    assert not isinstance(told, BaseException)
    assert told.answers == {1: "of 1", 4: "of 4"}
    assert told.silent == [SECOND, THIRD]
    assert took_s == BROKER_S


def test_the_first_error_cancels_the_other_work() -> None:
    ended: list[str] = []

    async def work(name: str, seconds: float, *, fails: bool = False) -> str:
        try:
            await asyncio.sleep(seconds)
        finally:
            ended.append(name)
        if fails:
            raise RequestRejected(ErrorCode.INVALID_REQUEST, name)
        return name

    assert timed(lambda: together(work("a", 2), work("b", 1))) == (["a", "b"], 2.0)
    ended.clear()
    error, took_s = timed(lambda: together(work("a", 9), work("b", 1, fails=True)))
    assert (str(error), took_s) == ("b", 1.0)
    assert ended == ["b", "a"]


# --- any broker ---------------------------------------------------------------------------------------------------------


class Question:
    """Puts a question; each time it has the next outcome: seconds, and an answer or an error."""

    def __init__(self, *outcomes: tuple[float, str | Exception]) -> None:
        self._outcomes = list(outcomes)
        self.put_s: list[float] = []

    async def ask(self) -> str:
        self.put_s.append(asyncio.get_running_loop().time())
        seconds, outcome = self._outcomes.pop(0)
        await asyncio.sleep(seconds)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome

    def soon(self) -> tuple[str | BaseException, float]:
        return timed(lambda: soon(gateway(), self.ask))


AGAIN_S = PATIENCE_S + MARGIN_S


def test_a_question_that_is_answered_soon_is_put_once() -> None:
    question = Question((AGAIN_S / 2, "first"))
    assert question.soon() == ("first", pytest.approx(AGAIN_S / 2))
    assert question.put_s == [0]


def test_a_question_without_an_answer_is_put_again_and_the_first_answer_counts() -> None:
    for outcomes in ([(60.0, "first"), (0.5, "second")], [(AGAIN_S + 0.5, "second"), (60.0, "first")]):
        question = Question(*outcomes)
        assert question.soon() == ("second", pytest.approx(AGAIN_S + 0.5))
        assert question.put_s == [0, pytest.approx(AGAIN_S)]


def test_one_of_two_errors_is_no_outcome() -> None:
    late = BrokerUnavailable("The first fails.")
    assert Question((AGAIN_S + 0.1, late), (0.5, "second")).soon() == ("second", pytest.approx(AGAIN_S + 0.5))
    error, took_s = Question((AGAIN_S + 0.1, late), (0.5, BrokerUnavailable("The second fails."))).soon()
    assert (str(error), took_s) == ("The first fails.", pytest.approx(AGAIN_S + 0.5))


def test_a_question_that_no_broker_answers_ends() -> None:
    error, took_s = Question((60, "first"), (60, "second")).soon()
    assert str(error).startswith("No broker responded within 5 s.")
    assert took_s == ANY_S


# --- long work ----------------------------------------------------------------------------------------------------------


def test_long_work_goes_on_for_the_next_page() -> None:
    ended: list[str] = []

    async def read() -> str:
        task = asyncio.current_task()
        assert task is not None
        task.set_name("goes on")
        await asyncio.sleep(2 * ANY_S)
        ended.append("read")
        return "all"

    async def page() -> str:
        with pytest.raises(BrokerUnavailable, match=r"^Topic t was not read within 5 s\."):
            await in_time(read(), "Topic t")
        assert asyncio.get_running_loop().time() == ANY_S
        assert ended == []
        await asyncio.sleep(2 * ANY_S)
        assert ended == ["read"]
        return "next"

    assert timed(page) == ("next", 3 * ANY_S)


def test_work_that_ends_in_time_gives_its_result_or_its_error() -> None:
    async def read(*, fails: bool) -> str:
        await asyncio.sleep(1)
        if fails:
            raise RequestRejected(ErrorCode.INVALID_REQUEST, "It fails.")
        return "all"

    assert timed(lambda: in_time(read(fails=False), "Topic t")) == ("all", 1.0)
    error, took_s = timed(lambda: in_time(read(fails=True), "Topic t"))
    assert (str(error), took_s) == ("It fails.", 1.0)
