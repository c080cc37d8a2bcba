"""One broker process for the tests of a module; at its end it must have had nothing to complain about."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator, Sequence

import pytest

from tests.interop.java_programs import JavaProgram, running
from tests.interop.serving import BROKERS, Served, firn_serving


@pytest.fixture(scope="module", params=BROKERS)
def how(request: pytest.FixtureRequest) -> Sequence[str]:
    """Arguments of the broker: the tests of a module run once for each kind."""
    arguments: Sequence[str] = request.param
    return arguments


@pytest.fixture(scope="module")
def firn(how: Sequence[str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with firn_serving(tmp_path_factory.mktemp("firn"), *how) as served:
        yield served
    assert not served.troubles


@pytest.fixture
def quiet(firn: Served) -> Iterator[Served]:
    """The broker, which must not have had to complain during this test."""
    before = len(firn.troubles)
    yield firn
    assert not firn.troubles[before:]


@pytest.fixture(scope="module")
def jvm() -> Iterator[JavaProgram]:
    """The process that runs Kafka's own tools."""
    with running("Tools.java", heap_mib=512) as program:
        yield program


@pytest.fixture
def kafka_python_leftovers() -> Iterator[None]:
    """For tests with kafka-python, which forgets to close a socket that it gave up connecting; no later test is to be blamed."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
