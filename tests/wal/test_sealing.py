"""A log is ended at the first number that was never durable, and nowhere else (ADR 0037, J9 to J13)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random

import pytest

from app.wal.format import WINDOW
from app.wal.sealing import Action, Found, List, PutSeal, ReadTails, Sealed, Sealing

RECORDS, SEAL = Found.RECORDS, Found.SEAL


def end_of(objects: dict[int, Found], between: Callable[[Action], None] = lambda action: None) -> int:
    """Seal a log. ``between`` is called before each action, and may change the objects as others do."""
    sealing = Sealing()
    action = sealing.start()
    for _ in range(200):
        between(action)
        match action:
            case List(above):
                action = sealing.on_list([number for number in objects if number > above])
            case ReadTails(numbers):
                action = sealing.on_tails({number: objects.get(number, Found.MISSING) for number in numbers})
            case PutSeal(number):
                written = number not in objects
                objects.setdefault(number, SEAL)
                action = sealing.on_put(written=written)
            case Sealed(end):
                return end
    raise AssertionError("it does not end")


@pytest.mark.parametrize(
    ("numbers", "end"),
    [
        ([], 0),
        ([0], 1),
        ([0, 1, 3], 2),
        ([1, 2, 3], 0),
        ([*range(50, 61)], 61),
        ([*range(50, 58), 60, 61], 58),
    ],
)
def test_the_first_number_that_was_never_durable_is_sealed(numbers: list[int], end: int) -> None:
    objects = dict.fromkeys(numbers, RECORDS)
    assert end_of(objects) == end
    assert objects[end] is SEAL
    assert end_of(objects) == end, "a second taker finds the same end"


def test_an_old_seal_in_a_trimmed_number_is_not_the_end() -> None:
    objects = {3: SEAL} | dict.fromkeys(range(50, 61), RECORDS)
    assert end_of(objects) == 61


def test_garbage_behind_a_seal_does_not_count() -> None:
    objects = {9: RECORDS, 10: RECORDS, 11: SEAL, 12: RECORDS, 11 + WINDOW - 1: RECORDS}
    assert end_of(objects) == 11


def test_a_taker_that_was_paused_does_not_believe_its_seal_in_a_living_log() -> None:
    objects = dict.fromkeys(range(3), RECORDS)

    def meanwhile(action: Action) -> None:
        if isinstance(action, PutSeal) and action.number == 3:
            for number in range(12):
                objects.pop(number, None)
            objects.update(dict.fromkeys(range(12, 21), RECORDS))

    assert end_of(objects, meanwhile) == 21


def test_a_taker_that_was_paused_does_not_believe_its_seal_in_a_dead_log() -> None:
    """The seal that counts is less than a window above the hole: only its being a seal tells."""
    objects = dict.fromkeys(range(3), RECORDS)

    def meanwhile(action: Action) -> None:
        if isinstance(action, PutSeal) and action.number == 3:
            objects.clear()
            objects[3 + WINDOW] = SEAL

    assert end_of(objects, meanwhile) == 3 + WINDOW


def test_a_chase_after_a_writer_that_is_faster_loses_a_round_each_time() -> None:
    """So it has an end: the shell counts rounds. Each taker's put finds an object that has just landed."""
    objects = dict.fromkeys(range(3), RECORDS)
    sealing = Sealing()
    action = sealing.start()
    puts = 0
    for _ in range(100):
        match action:
            case List(above):
                action = sealing.on_list([number for number in objects if number > above])
            case ReadTails(numbers):
                action = sealing.on_tails({number: objects.get(number, Found.MISSING) for number in numbers})
            case PutSeal(number):
                puts += 1
                objects[number] = RECORDS
                action = sealing.on_put(written=False)
    assert puts > 20
    assert sealing.rounds >= puts // 2


@pytest.mark.parametrize(("kept", "end"), [(WINDOW + 1, 12), (WINDOW, 3)])
def test_w_plus_1_objects_are_to_stay_and_w_are_too_few(kept: int, end: int) -> None:
    """J13: with one object less a taker that was paused takes a trimmed number for the end, though 12 numbers were acknowledged."""
    objects = dict.fromkeys(range(3), RECORDS)

    def meanwhile(action: Action) -> None:
        if isinstance(action, PutSeal) and action.number == 3:
            objects.clear()
            objects.update(dict.fromkeys(range(12 - kept, 12), RECORDS))

    assert end_of(objects, meanwhile) == end


def _run(seed: int, new_sealing: Callable[..., Sealing] = Sealing, *, window: int = WINDOW, one_less: int = 0) -> int:
    """A writer by J1 to J5, which trims by J13; takers that begin, pause and go on at any time; and deletion once it is dead.

    ``one_less``: planted, so many objects less stay. Returns: how many takers found the end.
    """
    rng = Random(seed)
    objects: dict[int, Found] = {}
    known: dict[int, bool] = {}  # numbers begun: whether the writer knows that they are durable
    durable_end, sealed_for_writer = 0, False
    ends: list[int] = []
    takers: list[tuple[Sealing, Action]] = []
    delete_share = rng.choice([0.0, 0.02, 0.1])
    taker_share = rng.choice([0.02, 0.1, 0.3])

    def writer_step() -> None:
        nonlocal durable_end, sealed_for_writer
        begun = len(known)
        kind = rng.choice(["begin", "land", "land", "trim"])
        if kind == "begin" and begun < durable_end + window and not sealed_for_writer:
            known[begun] = False
        elif kind == "land" and (on_their_way := [number for number in known if not known[number]]):
            number = rng.choice(on_their_way)
            if objects.setdefault(number, RECORDS) is SEAL:
                sealed_for_writer = True
            elif rng.random() < 0.7:  # or the answer is lost
                known[number] = True
            while known.get(durable_end):
                durable_end += 1
        elif kind == "trim":
            for number in range(durable_end - (window + 1 - one_less)):
                if objects.get(number) is RECORDS:
                    del objects[number]

    for _ in range(400):
        if ends and rng.random() < delete_share:
            for number in [each for each in objects if each != ends[0] and rng.random() < 0.9]:
                del objects[number]
        if rng.random() > taker_share:
            writer_step()
        elif len(takers) < 3 and rng.random() < 0.2:
            sealing = new_sealing(window=window)
            takers.append((sealing, sealing.start()))
        elif takers:
            sealing, action = takers.pop(rng.randrange(len(takers)))
            match action:
                case List(above):
                    action = sealing.on_list([each for each in objects if each > above])
                case ReadTails(numbers):
                    action = sealing.on_tails({each: objects.get(each, Found.MISSING) for each in numbers})
                case PutSeal(number):
                    written = number not in objects
                    objects.setdefault(number, SEAL)
                    action = sealing.on_put(written=written)
            if isinstance(action, Sealed):
                ends.append(action.end)
            else:
                takers.append((sealing, action))
        assert len(set(ends)) <= 1, f"seed {seed}: a log has the ends {ends}"
        assert not ends or durable_end <= ends[0], (
            f"seed {seed}: acknowledged up to {durable_end}, beyond the end {ends[0]}"
        )
    return len(ends)


@pytest.mark.parametrize("seeds", [range(300), pytest.param(range(300, 3000), marks=pytest.mark.ci)])
def test_no_schedule_of_writer_trimmer_and_takers_makes_two_ends(seeds: range) -> None:
    assert sum(_run(seed) for seed in seeds) > 1.3 * len(seeds)


class _Unchecked(Sealing):
    """J10: a seal that was put counts."""

    def on_put(self, *, written: bool) -> Action:
        return Sealed(self._number) if written else super().on_put(written=written)


class _HalfChecked(Sealing):
    """J10: seals above are not looked for."""

    def on_tails(self, found: Mapping[int, Found]) -> Action:
        return Sealed(self._number) if self._stage.name == "CHECK_TAILS" else super().on_tails(found)


@pytest.mark.parametrize(
    ("new_sealing", "one_less"),
    [
        pytest.param(_Unchecked, 0, id="J10 a seal is not checked"),
        pytest.param(_HalfChecked, 0, id="J10 seals above are overlooked"),
        pytest.param(Sealing, 1, id="J13 one object less stays"),
    ],
)
def test_a_rule_taken_back_gives_a_log_two_ends_or_acknowledges_beyond(
    new_sealing: Callable[..., Sealing], one_less: int
) -> None:
    """The simulation of brokers hardly ever has such schedules, so they are drawn here."""

    def search() -> None:
        for seed in range(3000):
            _run(seed, new_sealing, window=2, one_less=one_less)

    with pytest.raises(AssertionError, match="seed"):
        search()


def test_a_smaller_window_works_as_well() -> None:
    for seed in range(200):
        _run(seed, window=2)
