"""INV-15, walked: no request of any API holds the loop for more than 50 ms of CPU.

Requests are generated from the wire schema, so a new field or array is walked without a line here. An API without an entry fails.
CPU time of the loop's thread is counted, garbage collection included. Other work on the machine raises it through the caches, so a
request counts as too long only if each of several tries was.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from app.core.errors import ErrorCode
from app.core.limits import REQUEST_BYTES_MAX, REQUEST_ELEMENTS_MAX
from app.wire.apikeys import ApiKey
from app.wire.bounds import BYTES_MAX, elements_max
from app.wire.codec import decode_response
from app.wire.framing import frame
from app.wire.header import encode_request_header, parse_response_header
from app.wire.versions import OPAQUE
from tests.support.crowded import FULL, MODERATE, SMALL, Crowded, Sizes, crowded
from tests.support.fillings import Names
from tests.support.turns import TURN_MS_MAX, Line, least_ms
from tests.support.walked_apis import WALKED, Asked, floor_request, requests_of, served_keys

QUICK_ELEMENTS: Final = 1_000
ELEMENTS: Final = 5_000


def test_every_api_that_brokers_serve_has_an_entry() -> None:
    assert served_keys() == WALKED.keys()


def test_limits_are_above_what_must_be_served() -> None:
    assert REQUEST_BYTES_MAX >= 100 << 20, "a Produce of 100 MiB"
    assert REQUEST_ELEMENTS_MAX >= 41_000, "a reassignment of 10,000 partitions to three replicas"


def test_a_request_that_is_longer_than_its_api_needs_ends_the_connection(tmp_path: Path) -> None:
    body = b"\0" * (BYTES_MAX + 1)
    with crowded(tmp_path, Sizes(1, 1, 1, 1, 1, 1, 1)) as on:
        for key in (ApiKey.METADATA, ApiKey.FETCH):
            with Line(on.broker.port) as line:
                assert line.ask(frame(encode_request_header(key, 4, 1, "walk"), body)) is None


class Walk:
    """Asks requests one by one, and keeps what took too long."""

    def __init__(self, on: Crowded) -> None:
        self.on = on
        self.too_long: list[str] = []
        self.lines: list[str] = []

    def ask(self, asked: Asked) -> bytes | None:
        """Ask until a try was short enough. Returns: the last response; None if the connection was closed."""
        whole = frame(encode_request_header(asked.key, asked.version, 1, "walk"), asked.body()) * asked.times
        answers: list[bytes | None] = []

        def once() -> None:
            with Line(self.on.broker.port) as line:
                answers.append(line.ask(whole))
                for _ in range(asked.times - 1):
                    line.read_answer()

        least = least_ms(self.on.measured, once)
        self.lines.append(f"{least:8.1f} ms {asked} {codes_of(asked, answers[0])}")
        if least > TURN_MS_MAX:
            self.too_long.append(f"{asked}: {least:.0f} ms")
        return answers[0]

    def check(self) -> None:
        """Fail if a request took too long."""
        assert self.too_long == []


def codes_of(asked: Asked, answer: bytes | None) -> dict[int, int] | None:
    """The error codes of a response, counted; None if there is none."""
    if answer is None:
        return None
    if asked.key in OPAQUE:
        return {}
    view = memoryview(answer)
    header = parse_response_header(view, asked.key, asked.version)
    return dict(Counter(_codes(decode_response(asked.key, asked.version, view[header.body_start :]))))


def _codes(part: Any) -> Iterator[int]:
    if isinstance(part, list):
        for one in part:
            yield from _codes(one)
    elif dataclasses.is_dataclass(part):
        for item in dataclasses.fields(part):
            value = getattr(part, item.name)
            if item.name.endswith("error_code"):
                yield value
            elif isinstance(value, list) or dataclasses.is_dataclass(value):
                yield from _codes(value)


def in_order() -> list[ApiKey]:
    """All APIs, the ones that destroy what others need last."""
    return sorted(WALKED, key=lambda key: (WALKED[key].destroys, key))


@pytest.mark.ci
def test_no_request_of_any_api_holds_the_loop(tmp_path: Path) -> None:
    with crowded(tmp_path, SMALL) as on:
        walk = Walk(on)
        for key in in_order():
            for asked in requests_of(on, key, QUICK_ELEMENTS, newest_only=True, names=(Names.EXISTING, Names.UNKNOWN)):
                walk.ask(asked)
    walk.check()


@pytest.mark.ci
def test_no_request_of_a_client_without_rights_holds_the_loop(tmp_path: Path) -> None:
    refused: Counter[int] = Counter()
    with crowded(tmp_path, SMALL, rights=False) as on:
        walk = Walk(on)
        for key in in_order():
            for asked in requests_of(on, key, QUICK_ELEMENTS, newest_only=True, names=(Names.EXISTING, Names.UNKNOWN)):
                refused.update(codes_of(asked, walk.ask(asked)) or {})
    assert {ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.GROUP_AUTHORIZATION_FAILED} <= refused.keys()
    walk.check()


NAMES_GROUPS: Final = (
    ApiKey.FIND_COORDINATOR, ApiKey.DESCRIBE_GROUPS, ApiKey.OFFSET_FETCH, ApiKey.CONSUMER_GROUP_DESCRIBE,
    ApiKey.SHARE_GROUP_DESCRIBE, ApiKey.DELETE_GROUPS,
)  # fmt: skip
"""Java's hash of a name of 32 KiB takes more than all else that is done with it."""


@pytest.mark.ci
def test_no_request_with_long_names_of_groups_holds_the_loop(tmp_path: Path) -> None:
    with crowded(tmp_path, SMALL) as on:
        walk = Walk(on)
        for key in NAMES_GROUPS:
            for asked in requests_of(on, key, QUICK_ELEMENTS, newest_only=True, names=(Names.LONGEST,)):
                walk.ask(asked)
    walk.check()


@pytest.fixture(name="on", scope="module")
def _on(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crowded]:
    """A broker for all APIs, because it takes minutes to fill it."""
    with crowded(tmp_path_factory.mktemp("crowded"), request.param) as on:
        yield on


@pytest.mark.slow
@pytest.mark.parametrize("on", [pytest.param(MODERATE, id="moderate")], indirect=True)
@pytest.mark.parametrize("key", in_order(), ids=lambda key: key.name)
def test_no_long_request_of_any_api_holds_the_loop(on: Crowded, key: ApiKey) -> None:
    walk = Walk(on)
    for asked in requests_of(on, key, min(ELEMENTS, elements_max(key)), newest_only=True):
        walk.ask(asked)
    walk.check()


@pytest.mark.slow
@pytest.mark.parametrize("on", [pytest.param(FULL, id="full")], indirect=True)
@pytest.mark.parametrize("key", [key for key in in_order() if WALKED[key].floors], ids=lambda key: key.name)
def test_what_must_be_served_is_served(on: Crowded, key: ApiKey) -> None:
    """Bounds may not be lowered below the floors of each entry."""
    refused: dict[str, object] = {}
    walk = Walk(on)
    for floor in WALKED[key].floors:
        asked = floor_request(on, key, floor)
        codes = codes_of(asked, walk.ask(asked))
        if codes is None or not codes.keys() <= {0, *floor.refused_with}:
            refused[str(asked)] = codes or "closed"
    assert refused == {}
    walk.check()


@pytest.mark.slow
@pytest.mark.parametrize("on", [pytest.param(FULL, id="full")], indirect=True)
@pytest.mark.parametrize("key", in_order(), ids=lambda key: key.name)
def test_no_longest_request_of_any_version_holds_the_loop(on: Crowded, key: ApiKey) -> None:
    """All versions whose shapes differ, as many elements as a request may have, on a broker with much of everything."""
    walk = Walk(on)
    for asked in requests_of(on, key, elements_max(key)):
        walk.ask(asked)
    walk.check()
