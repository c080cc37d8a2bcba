"""Results are as durable as data: failure by failure."""

from __future__ import annotations

import pytest

from app.configs import Durability
from app.exactly_once.strength import strength_of, weaker

MEMORY = strength_of(Durability.MEMORY, 1, 1)
DISK = strength_of(Durability.DISK, 1, 3)
REPLICATED_MEMORY = strength_of(Durability.MEMORY, 2, 3)
REPLICATED = strength_of(Durability.DISK, 2, 3)
OBJECT = strength_of(Durability.OBJECT, 1, 1)


@pytest.mark.parametrize(
    ("result", "data", "phrase"),
    [
        (MEMORY, DISK, "a loss of power"),
        (REPLICATED_MEMORY, DISK, "a loss of power"),
        (DISK, REPLICATED_MEMORY, "the loss of a machine"),
        (DISK, REPLICATED, "the loss of a machine"),
        (REPLICATED, OBJECT, "the loss of all machines"),
        (MEMORY, OBJECT, "a loss of power"),
        (MEMORY, MEMORY, None),
        (REPLICATED, DISK, None),
        (OBJECT, REPLICATED, None),
    ],
)
def test_a_result_survives_what_its_data_survive(result: object, data: object, phrase: str | None) -> None:
    assert weaker(result, data) == phrase  # type: ignore[arg-type]


def test_a_minimum_above_the_number_of_replicas_makes_no_second_copy() -> None:
    assert strength_of(Durability.DISK, 2, 1) == strength_of(Durability.DISK, 1, 1)
