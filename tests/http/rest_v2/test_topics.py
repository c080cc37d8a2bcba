"""Topics, partitions, offsets and brokers of REST v2."""

from __future__ import annotations

import pytest

from tests.http.rest_v2.clients import Rest


async def test_a_topic_is_listed_and_described_with_its_partitions_and_their_ends(rest: Rest) -> None:
    await rest.broker.create_topic("flights", partitions=2)
    await rest.produce("flights", 1, 2, 3, partition=1)
    assert "flights" in (await rest.ask("GET", "/topics")).json()
    (broker,) = (await rest.ask("GET", "/brokers")).json()["brokers"]
    partitions = [
        {"partition": index, "leader": broker, "replicas": [{"broker": broker, "leader": True, "in_sync": True}]}
        for index in (0, 1)
    ]
    topic = (await rest.ask("GET", "/topics/flights")).json()
    assert topic["name"] == "flights"
    assert topic["configs"]["cleanup.policy"] == "delete"
    assert topic["partitions"] == partitions
    assert (await rest.ask("GET", "/topics/flights/partitions")).json() == partitions
    assert (await rest.ask("GET", "/topics/flights/partitions/1")).json() == partitions[1]
    ends = await rest.ask("GET", "/topics/flights/partitions/1/offsets")
    assert ends.json() == {"beginning_offset": 0, "end_offset": 3}
    assert ends.headers["content-type"] == "application/vnd.kafka.v2+json"


@pytest.mark.parametrize(
    ("path", "code"),
    [
        ("/topics/absent", 40401),
        ("/topics/absent/partitions", 40401),
        ("/topics/absent/partitions/0/offsets", 40401),
        ("/topics/not*a*name", 40401),
        ("/topics/flights/partitions/9", 40402),
        ("/topics/flights/partitions/-1/offsets", 40402),
        ("/consumers/g/instances/absent/records", 40403),
    ],
)
async def test_things_that_there_are_not_have_codes_of_their_own(rest: Rest, path: str, code: int) -> None:
    await rest.broker.create_topic("flights")
    answer = await rest.ask("GET", path)
    assert (answer.status_code, answer.json()["error_code"]) == (404, code)
    assert answer.headers["content-type"] == "application/vnd.kafka.v2+json"


async def test_types_that_are_not_served_are_refused(rest: Rest) -> None:
    await rest.broker.create_topic("flights")
    assert (await rest.ask("GET", "/topics", accept="text/html")).status_code == 406
    form = await rest.ask("POST", "/topics/flights", {}, content_type="application/x-www-form-urlencoded")
    assert (form.status_code, rest.broker.log("flights").log_end_offset) == (415, 0)
