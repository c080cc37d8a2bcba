"""Real brokers that hear neither the others nor the bucket, under groups of all kinds (ADR 0040).

``python -m tests.faults.isolations`` says how long the groups need.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.faults.isolations import isolate

pytestmark = pytest.mark.faults


@pytest.mark.ci
@pytest.mark.parametrize("brokers", [2, 3])
def test_groups_of_all_kinds_get_on_while_a_broker_hears_nobody(tmp_path: Path, brokers: int) -> None:
    isolate(tmp_path, brokers, 2, seed=brokers)


@pytest.mark.slow
@pytest.mark.parametrize("in_store", [False, True])
@pytest.mark.parametrize("brokers", [2, 3, 5])
def test_the_same_again_and_again(tmp_path: Path, brokers: int, in_store: bool) -> None:
    isolate(tmp_path, brokers, 10, seed=brokers, in_store=in_store)
