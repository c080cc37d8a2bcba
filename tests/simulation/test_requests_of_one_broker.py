"""Requests of a broker that is alone, counted: a cluster of one asks no more than a broker of level 0 (ADR 0023, AL1, AL2)."""

from __future__ import annotations

import asyncio
from ast import literal_eval
from collections import Counter

import pytest

from app.metadata.image.records import LEVEL_MAX
from tests.simulation.small import Client
from tests.simulation.world import World, run_seed

REST_S = 60
FIRST_START = {"list": 2, "put": 1, "put_if_absent": 2}
"""The log; a sign of life; the seal, whether it is the last number, and the entry that makes cluster and registration."""


def requests_of(level: int, *, topic: bool) -> tuple[Counter[str], Counter[str], Counter[str]]:
    """Requests of a first start, of a minute at rest, and of a start after a stop in order."""
    kept: list[tuple[str, ...]] = []
    marks: list[int] = []

    async def story(world: World) -> None:
        marks.append(len(kept))
        if topic:
            await Client(world, "c").create()
        await asyncio.sleep(
            75
        )  # a minute after a broker has come, ended write-ahead logs are looked for, with one LIST
        marks.append(len(kept))
        await asyncio.sleep(REST_S)
        marks.append(len(kept))
        machine = world.owner
        machine.stop()
        await world.until(lambda: machine.process is not None and machine.process.dead, 30, "the stop")
        marks.append(len(kept))
        machine.start()
        await world.until(lambda: machine.up, 30, "the second start")
        marks.append(len(kept))

    def keep(line: str) -> None:
        what = literal_eval(line.partition(" ")[2]) if "('store'" in line else ()
        if what:
            kept.append(what)

    outcome = run_seed(2, script=story, new_level=level, keep=keep)
    assert outcome.violation is None, outcome.violation
    first, rests, rested, stopped, again = marks
    parts = kept[:first], kept[rests:rested], kept[stopped:again]
    return tuple(Counter(what[2] for what in part) for part in parts)  # type: ignore[return-value]


@pytest.mark.parametrize("level", [0, LEVEL_MAX])
def test_a_first_start_asks_for_two_lists_and_three_puts(level: int) -> None:
    first, _, again = requests_of(level, topic=False)
    assert first == FIRST_START
    assert again == FIRST_START | {"get": again["get"]}, "and the entries so far"


def test_a_cluster_of_one_broker_at_rest_asks_no_more_than_a_broker_of_level_0() -> None:
    of_0 = requests_of(0, topic=False)[1]
    of_newest = requests_of(LEVEL_MAX, topic=False)[1]
    assert of_0 == {"put": 6, "list": 6}
    assert of_newest == {"put": 6, "get": 6}, "a sign of life and a look at the next number, every 10 s"


def test_a_start_with_topics_takes_one_put_more_to_lead_them() -> None:
    again = requests_of(LEVEL_MAX, topic=True)[2]
    assert again["put_if_absent"] + again["put"] == 1 + sum(FIRST_START[one] for one in ("put", "put_if_absent"))
