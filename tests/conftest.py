"""Which examples Hypothesis draws, and when the garbage collector looks at the collected tests.

With ``CI`` set, Hypothesis derives its examples from the tests, so that what passes once passes again. ``make test-new`` draws new
ones with a seed: the same seed draws the same examples again. It draws the full number; the default suite, which meets the same
examples each time, half of it. An example that fails is kept as a test or an ``@example``.

The collected tests are more than a million objects that live until the end. The garbage collector does not look at them: that took
a quarter of the time of a collection, and a second of each test that collects garbage itself. Modules that tests import, and trees
that they parse, live until the end as well: after each module of tests, the objects that are left are set aside too.

Tests that parse the whole program come first. Then one worker parses it, and no other.
"""

from __future__ import annotations

import gc
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

TESTS = Path(__file__).parent
PARSE_THE_PROGRAM = (
    "broker/test_turns_of_timers.py",
    "core/test_errors.py",
    "core/test_log_events.py",
    "handlers/test_views.py",
    "http/test_metrics_document.py",
    "test_distribution.py",
    "test_docstrings.py",
    "test_error_sentences.py",
    "test_map.py",
    "test_names.py",
    "test_prose.py",
    "test_public_faces.py",
    "test_settings_are_read.py",
)

# How fast examples are drawn depends on what else the machine does, and is no reason to fail.
settings.register_profile("untimed", settings(), deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("default-suite", settings.get_profile("untimed"), max_examples=50)
settings.register_profile(
    "new", settings.get_profile("untimed"), max_examples=100, derandomize=False, database=None, print_blob=True
)
settings.load_profile("default-suite")


def pytest_sessionstart() -> None:
    gc.disable()


@pytest.hookimpl(trylast=True)
def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    first = {TESTS / one for one in PARSE_THE_PROGRAM}
    items.sort(key=lambda item: item.path not in first)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, None, None]:
    try:
        yield
    finally:
        if nextitem is not None and nextitem.path != item.path:
            gc.collect()
            gc.freeze()


def pytest_report_header(config: pytest.Config) -> str | None:
    seed = config.getoption("--hypothesis-seed", None)
    if seed is None:
        return None
    return f"hypothesis: new examples; SEED={seed} draws the same ones: make test-new SEED={seed}"
