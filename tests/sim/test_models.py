"""The parts of small models: their processes, the way to their store, and their links."""

from __future__ import annotations

from random import Random

from tests.sim.links import Links
from tests.sim.process import ModelProcess
from tests.sim.requests import StoreRequests
from tests.sim.timeline import Timeline


def process_on(timeline: Timeline) -> ModelProcess:
    return ModelProcess(timeline, 1, Random(1))


def test_all_that_comes_in_a_pause_comes_after_it_in_order() -> None:
    timeline = Timeline()
    process, came = process_on(timeline), list[tuple[str, float]]()
    for name, delay_ms in (("first", 20.0), ("second", 90.0), ("third", 250.0)):
        process.after(delay_ms, lambda name=name: came.append((name, timeline.now_ms)))
    timeline.run_until(10.0)
    process.pause(100.0)
    timeline.run_until(400.0)
    assert came == [("first", 110.0), ("second", 110.0), ("third", 250.0)]
    assert not process.paused


def test_a_second_pause_makes_the_first_one_longer_and_never_shorter() -> None:
    timeline = Timeline()
    process, came = process_on(timeline), list[float]()
    process.pause(100.0)
    process.pause(30.0)
    process.after(10.0, lambda: came.append(timeline.now_ms))
    timeline.run_until(50.0)
    process.pause(200.0)
    timeline.run_until(249.0)
    assert came == []
    timeline.run_until(300.0)
    assert came == [250.0]


def test_nothing_of_a_process_is_called_after_its_death_even_if_it_died_in_a_pause() -> None:
    timeline = Timeline()
    process, came = process_on(timeline), list[str]()
    process.pause(100.0)
    process.after(10.0, came.append, "in the pause")
    process.after(150.0, came.append, "after it")
    timeline.run_until(50.0)
    process.alive = False
    timeline.run_until(300.0)
    process.post(came.append, "now")
    assert came == []


class Shelf(StoreRequests):
    """A store of one list."""

    def __init__(self, timeline: Timeline, seed: int) -> None:
        super().__init__(timeline, Random(seed))
        self.items: list[str] = []

    def add(self, item: str) -> str:
        self.items.append(item)
        return item


def outcome_of(seed: int, *, undecided_share: float, only_reads: bool = False) -> tuple[list[str | None], list[str]]:
    """What the process learns of one request, and what the store has after all."""
    timeline = Timeline()
    shelf, told = Shelf(timeline, seed), list[str | None]()
    shelf.undecided_share = undecided_share
    shelf.ask(process_on(timeline), lambda: shelf.add("x"), told.append, only_reads=only_reads)
    timeline.run_until(10_000.0)
    return told, shelf.items


def test_an_undecided_request_may_take_effect_or_not_and_its_sender_learns_neither() -> None:
    outcomes = [outcome_of(seed, undecided_share=1.0) for seed in range(20)]
    assert {tuple(told) for told, _ in outcomes} == {(None,)}
    assert {tuple(items) for _, items in outcomes} == {(), ("x",)}
    assert outcome_of(1, undecided_share=0.0) == (["x"], ["x"])
    assert outcome_of(1, undecided_share=1.0, only_reads=True) == ([None], [])


def test_a_machine_that_is_cut_off_gets_no_response_even_to_a_request_that_has_arrived() -> None:
    timeline = Timeline()
    shelf, told = Shelf(timeline, 1), list[tuple[float, str | None]]()
    process = process_on(timeline)
    shelf.ask(process, lambda: shelf.add("sent"), lambda found: told.append((timeline.now_ms, found)))
    shelf.away_from.add(process.node_id)
    shelf.ask(process, lambda: shelf.add("lost"), lambda found: told.append((timeline.now_ms, found)))
    timeline.run_until(10_000.0)
    assert shelf.items == ["sent"]
    assert [found for _, found in told] == [None, None]
    assert min(at_ms for at_ms, _ in told) >= shelf.timeout_ms


def test_messages_to_a_link_that_is_cut_are_held_or_lost_and_the_held_ones_arrive_once_it_is_healed() -> None:
    timeline = Timeline()
    links, came = Links(timeline, Random(1)), list[int]()
    links.cut.add((1, 2))
    for number in range(40):
        links.send(1, 2, lambda number=number: came.append(number))
    links.send(2, 1, lambda: came.append(100))
    timeline.run_until(1000.0)
    links.release()
    timeline.run_until(2000.0)
    assert came == [100], "one direction is cut, and still is"
    links.heal()
    timeline.run_until(3000.0)
    assert 5 < len(came) < 35
    assert len(set(came)) == len(came)


def test_a_machine_that_is_cut_off_reaches_itself_alone() -> None:
    links = Links(Timeline(), Random(1))
    links.cut_off.add(2)
    assert [links.is_cut(*pair) for pair in ((1, 2), (2, 1), (2, 2), (1, 3))] == [True, True, False, False]


def test_messages_are_lost_late_and_doubled_by_the_shares_of_the_links() -> None:
    timeline = Timeline()
    links, came = Links(timeline, Random(1)), list[float]()

    def sent(*, doubles: bool) -> list[float]:
        came.clear()
        start_ms = timeline.now_ms
        links.send(1, 2, lambda: came.append(timeline.now_ms - start_ms), doubles=doubles)
        timeline.run_until(start_ms + 20_000.0)
        return list(came)

    assert [at_ms <= links.delay_ms[1] for at_ms in sent(doubles=True)] == [True]
    links.doubled_share = 1.0
    assert len(sent(doubles=True)) == 2
    assert len(sent(doubles=False)) == 1
    links.late_share = 1.0
    assert min(sent(doubles=True)) >= links.late_ms[0]
    links.lost_share = 1.0
    assert sent(doubles=True) == []
