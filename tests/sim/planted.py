"""The proof that a world finds faults: a fault is planted, and the checker meant for it must find it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import pytest

from tests.sim.violation import Violation


def assert_found(
    found_by: str | Collection[str],
    seeds: Sequence[int],
    run: Callable[[int], Violation | None],
    *,
    other_ends: type[Exception] | tuple[type[Exception], ...] = (),
) -> None:
    """Fail unless one of ``seeds`` ends by a violation of the invariant ``found_by``, or of one of several.

    Violations of other invariants do not count. The failure lists them.

    Args:
        run: runs the world with the planted fault by a seed. It returns the violation, or raises it.
        other_ends: errors of ``run`` that do not count either, because the tested program found the fault itself.
    """
    wanted = {found_by} if isinstance(found_by, str) else set(found_by)
    others: list[str] = []
    for seed in seeds:
        try:
            violation = run(seed)
        except Violation as raised:
            violation = raised
        except other_ends as error:
            others.append(f"seed {seed}: {error!r}")
            continue
        if violation is None:
            continue
        if violation.invariant in wanted:
            return
        others.append(f"seed {seed}: {violation}")
    pytest.fail("\n".join([f"{sorted(wanted)} did not find it with {seeds}; found were:", *others]))
