"""Callers share a question and its answer."""

from __future__ import annotations

import asyncio

import pytest

from app.http.asked_once import AskedOnce


class Question:
    """Counts how often it is asked. Its answer comes when the test says so."""

    def __init__(self) -> None:
        self.asked = 0
        self.go_on = asyncio.Event()
        self.fails = False

    async def __call__(self) -> int:
        self.asked += 1
        number = self.asked
        await self.go_on.wait()
        if self.fails:
            self.fails = False
            raise ArithmeticError
        return number


async def begun(callers: int, question: AskedOnce[int]) -> list[asyncio.Task[int]]:
    tasks = [asyncio.create_task(question.answer()) for _ in range(callers)]
    await asyncio.sleep(0)
    return tasks


@pytest.mark.parametrize("keeps", [True, False])
async def test_callers_at_the_same_time_share_one_question(keeps: bool) -> None:
    ask = Question()
    tasks = await begun(50, AskedOnce(ask, keeps=keeps))
    ask.go_on.set()
    assert await asyncio.gather(*tasks) == [1] * 50
    assert ask.asked == 1


async def test_an_answer_is_kept_for_its_time_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    ask = Question()
    ask.go_on.set()
    monkeypatch.setattr("app.http.asked_once.KEPT_S", 60.0)
    question = AskedOnce(ask, keeps=True)
    assert [await question.answer() for _ in range(3)] == [1, 1, 1]
    monkeypatch.setattr("app.http.asked_once.KEPT_S", 0.0)
    question = AskedOnce(ask, keeps=True)
    assert [await question.answer() for _ in range(2)] == [2, 3]


async def test_an_answer_that_is_not_kept_is_for_callers_at_the_same_time() -> None:
    ask = Question()
    ask.go_on.set()
    question = AskedOnce(ask, keeps=False)
    assert [await question.answer() for _ in range(2)] == [1, 2]


async def test_a_caller_that_leaves_hands_the_question_to_the_next_one() -> None:
    ask = Question()
    first, *others = await begun(3, AskedOnce(ask, keeps=True))
    first.cancel()
    ask.go_on.set()
    assert await asyncio.gather(*others) == [2, 2]
    assert ask.asked == 2
    assert first.cancelled()


async def test_a_caller_with_its_own_way_to_ask_gets_the_answer_of_another_one() -> None:
    first, second = Question(), Question()
    first.go_on.set()
    second.go_on.set()
    question: AskedOnce[int] = AskedOnce(keeps=True, kept_s=60.0)
    assert [await question.answer(first), await question.answer(second)] == [1, 1]
    assert second.asked == 0


async def test_an_error_is_for_the_caller_that_asked() -> None:
    ask = Question()
    ask.fails = True
    first, *others = await begun(3, AskedOnce(ask, keeps=True))
    ask.go_on.set()
    with pytest.raises(ArithmeticError):
        await first
    assert await asyncio.gather(*others) == [2, 2]
