"""Faults planted into coordinators and into the raise of the level, one rule of ADR 0023, 0025, 0026 or 0027 taken back at a time.

Some are those that are planted into one broker too; here they are to be found when a coordinator moves.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any, Final

import pytest

from app.coordinator.partition import CoordinatedLog
from app.metadata import broker_changes, features, membership, registration
from app.metadata.cluster import BrokerRecord, MemberRecord
from app.transactions.elsewhere import OtherBrokers
from app.transactions.ending import _Answered
from app.transactions.link import AddAnswer
from tests.cluster_simulation.planted import SHORT, Planted
from tests.simulation.planted import (
    assigns_what_another_has_not_given_up,
    commits_what_is_to_be_aborted_in_a_second_partition,
    does_not_write_down_what_was_acknowledged,
    forgets_who_has_what_with_every_restart,
    lets_members_of_older_generations_commit,
    shares_what_somebody_has,
)


def gives_a_marker_up_on_a_refusal(patch: pytest.MonkeyPatch) -> None:
    def given_up(answered: Any) -> Generator[Any, None, None]:
        yield from answered._answer.__await__()

    patch.setattr(_Answered, "__await__", given_up)


def commits_by_its_own_disk(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CoordinatedLog, "stored", lambda log, end: log._partition.wait_stored(end, in_sync=False))


def does_not_ask_the_coordinator(patch: pytest.MonkeyPatch) -> None:
    async def add(_others: OtherBrokers, _asked: Any) -> AddAnswer:
        return AddAnswer({}, -1)

    patch.setattr(OtherBrokers, "add", add)


def answers_before_it_is_committed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CoordinatedLog, "stored", lambda _log, _end: None)


def raises_over_older_programs(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(features, "_too_old", lambda *_: None)


def goes_on_at_a_level_that_it_does_not_understand(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(membership, "LEVEL_MAX", 1 << 15)
    patch.setattr(broker_changes, "_check_level", lambda *_: None)


def writes_the_next_level_before_it_is_raised(patch: pytest.MonkeyPatch) -> None:
    def newer(*fields: Any) -> BrokerRecord:
        return MemberRecord(*fields, boot_id="boot", level_max=1)

    patch.setattr(registration, "BrokerRecord", newer)


_TRANSACTIONS: Final = SHORT | {"actors": ("transactions",)}
_GROUPS: Final = SHORT | {"actors": ("groups",)}
_ASSIGNED: Final = SHORT | {"actors": ("assigned",)}
_SHARING: Final = SHORT | {"actors": ("sharing",)}
_LONG: Final = {"seconds": 10.0, "pause_s": 0.5}

PLANTED: Final[dict[str, Planted]] = {
    "X3 a marker given up on a refusal": Planted(
        gives_a_marker_up_on_a_refusal,
        "INV-9",
        40,
        ("kill leader", "restart", "reassign"),
        _TRANSACTIONS | {"seconds": 20.0, "pause_s": 0.5},
    ),
    "a transaction committed in one of its partitions": Planted(
        commits_what_is_to_be_aborted_in_a_second_partition,
        "INV-9",
        20,
        ("kill leader",),
        _TRANSACTIONS | {"partitions": 3},
    ),
    "V1 the coordinator is not asked": Planted(
        does_not_ask_the_coordinator, "INV-9", 10, ("kill leader",), _TRANSACTIONS
    ),
    "G4 a commit answered before it is committed": Planted(
        answers_before_it_is_committed, "INV-8", 20, ("kill leader", "slow network"), _GROUPS | _LONG
    ),
    "G7 a replaced coordinator commits": Planted(
        commits_by_its_own_disk, "INV-8", 20, ("isolate", "partition", "pause leader"), _GROUPS | _LONG
    ),
    "members of older generations not fenced": Planted(
        lets_members_of_older_generations_commit, "INV-8", 20, ("kill leader",), _GROUPS
    ),
    "a partition assigned before it is given up": Planted(
        assigns_what_another_has_not_given_up, "INV-11", 10, ("kill leader",), _ASSIGNED
    ),
    "assignments forgotten by the next coordinator": Planted(
        forgets_who_has_what_with_every_restart, "INV-11", 30, ("kill leader", "restart"), _ASSIGNED | _LONG
    ),
    "a record shared twice": Planted(shares_what_somebody_has, "INV-12", 20, ("kill leader",), _SHARING),
    "acknowledged records not written down": Planted(
        does_not_write_down_what_was_acknowledged, "INV-12", 20, ("kill leader",), _SHARING | _LONG
    ),
    "a level that a registered program does not understand": Planted(
        raises_over_older_programs, "INV-14", 5, ("kill",), SHORT | {"actors": ("upgrade",)}
    ),
    "a program goes on at a level that it does not understand": Planted(
        goes_on_at_a_level_that_it_does_not_understand, "INV-14", 5, ("kill",), SHORT | {"actors": ("upgrade",)}
    ),
    "records of the next level before the raise": Planted(
        writes_the_next_level_before_it_is_raised, "INV-14", 3, ("kill",), SHORT | {"from_0": True}
    ),
}
"""By name. Each is run with seeds from 0 on."""
