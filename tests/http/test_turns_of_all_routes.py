"""INV-15, walked: no request of any HTTP route holds the loop of the HTTP process for more than 50 ms of CPU.

A route without an entry fails. CPU time of the loop's thread is counted, garbage collection included, as in
``tests/broker/test_turns_of_all_apis.py``.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from app.http.application import create_app
from app.http.gateway import HttpSettings
from app.machine.runtime import SystemClock
from app.wire.apikeys import ApiKey
from app.wire.apis.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from tests.support.crowded import CROWD, WIDE, Crowded, Sizes, crowded
from tests.support.routes import served_routes
from tests.support.turns import TURN_MS_MAX, Measured, least_ms
from tests.support.walked_routes import WALKED_ROUTES, HttpServer, Place, Route, fillings, http_server

SMALL = Sizes(1_000, 300, 1, 1, 1, 1, 1)
FULL = Sizes(10_000, 5_000, 1, 1, 1, 1, 1)
LONG = ("records", "records:batch", "topics/{topic_name}", "partitions/{partition_id}")
"""Ends of routes whose bodies are long."""


LAGGING = "lagging"
"""A group that has committed an offset in each partition of the wide topic."""


LONG_SESSIONS = dict.fromkeys(("group_consumer_session_timeout_ms", "group_consumer_max_session_timeout_ms"), 3_600_000)
"""Members send no heartbeats while the routes are walked."""


def fill_lags(crowd: Crowded) -> None:
    for first in range(0, crowd.sizes.partitions, 500):
        some = range(first, min(first + 500, crowd.sizes.partitions))
        offsets = [OffsetCommitRequestPartition(index, 0, -1, "") for index in some]
        commit = OffsetCommitRequest(group_id=LAGGING, topics=[OffsetCommitRequestTopic(name=WIDE, partitions=offsets)])
        answer = crowd.ask(ApiKey.OFFSET_COMMIT, 9, commit)
        assert not any(one.error_code for one in answer.topics[0].partitions), answer


def test_every_route_has_an_entry() -> None:
    app = create_app(HttpSettings(bootstrap=(("127.0.0.1", 1),)), clock=SystemClock(), rng=random.Random(1))
    assert served_routes(app) == WALKED_ROUTES.keys()


class Asked(NamedTuple):
    """A cluster and the HTTP server in front of it."""

    crowd: Crowded
    http: Measured
    place: Place


@pytest.fixture(name="asked", scope="module")
def _asked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    with crowded(tmp_path_factory.mktemp("crowded"), request.param, **LONG_SESSIONS) as crowd:
        (broker,) = crowd.broker.node.cluster.image.brokers
        http = Measured(lambda: http_server(("127.0.0.1", crowd.broker.port)))
        try:
            cluster_id = str(crowd.broker.node.cluster.image.cluster_id)
            fill_lags(crowd)
            member = crowd.names["member"][0]
            place = Place(cluster_id, WIDE, crowd.sizes.partitions, int(broker), CROWD, member, LAGGING)
            for sent in fillings(place):
                status, body = http.made.ask("POST", sent)
                assert status == 200, (sent.label, body[:300])
            yield Asked(crowd, http, place)
        finally:
            http.close()


def too_long(asked: Asked, *routes: Route) -> dict[str, str]:
    """The requests to these routes that took too long, or were answered as no request of their kind is."""
    server: HttpServer = asked.http.made
    found = {}
    for method, path in routes:
        for sent in WALKED_ROUTES[method, path](asked.place):
            answers: list[tuple[int, bytes]] = []

            def once(method: str = method, sent=sent, answers=answers) -> None:  # type: ignore[no-untyped-def]
                answers.append(server.ask(method, sent))

            took_ms = least_ms(asked.http, once)
            status, body = answers[0]
            if took_ms > TURN_MS_MAX:
                found[f"{method} {path} {sent.label}"] = f"{took_ms:.0f} ms"
            if status not in sent.statuses:
                found[f"{method} {path} {sent.label}, status"] = f"{status} {body[:200]!r}"
    return found


LONG_ROUTES = [route for route in WALKED_ROUTES if route[0] == "POST" and route[1].endswith(LONG)]
SHORT_ROUTES = [route for route in WALKED_ROUTES if route not in LONG_ROUTES]


@pytest.mark.ci
@pytest.mark.parametrize("asked", [pytest.param(SMALL, id="small")], indirect=True)
def test_no_request_holds_the_loop(asked: Asked) -> None:
    assert too_long(asked, *SHORT_ROUTES) == {}


@pytest.mark.slow
@pytest.mark.parametrize("asked", [pytest.param(FULL, id="full")], indirect=True)
@pytest.mark.parametrize("route", [*LONG_ROUTES, *SHORT_ROUTES], ids=lambda route: f"{route[0]} {route[1]}")
def test_no_request_to_a_large_cluster_holds_the_loop(asked: Asked, route: Route) -> None:
    assert too_long(asked, route) == {}
