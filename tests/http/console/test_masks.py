from __future__ import annotations

import base64
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from app.core.turns import whole
from app.core.units import Offset, TimestampMs
from app.http.application import create_app
from app.http.console.records.decoding import Decoded
from app.http.console.records.masks import HIDDEN, MASK, MASKED_BYTES_MAX, Mask, Masks, masked, parse_masks
from app.http.console.records.reading import masked_by_schema
from app.http.gateway import HttpSettings
from app.machine.runtime import SystemClock
from app.records.record import Record
from tests.support.broker import RunningBroker
from tests.support.console_forms import HTML


def record(value: bytes | None, key: bytes | None = None, **headers: bytes | None) -> Record:
    return Record(Offset(1), TimestampMs(2), key, value, tuple(headers.items()))


def hidden_in(value: bytes, *fields: str) -> bytes | None:
    mask = Masks([("t", field) for field in fields]).of("t")
    assert mask is not None
    return masked(mask, record(value)).value


def test_named_fields_are_replaced_and_all_else_stays_as_it_is() -> None:
    value = b'{"a": {"card": [1, 2], "n": 1.10, "big": 123456789012345678901}, "card": "x"}'
    assert hidden_in(value, "a.card") == (
        '{"a":{"card":"•••","n":1.10,"big":123456789012345678901},"card":"x"}'.encode()
    )


@pytest.mark.parametrize(
    ("value", "field", "expected"),
    [
        ({"people": [{"mail": 1, "id": 2}, [{"mail": 3}]]}, "people.mail", {"people": [{"mail": MASK, "id": 2}, [{"mail": MASK}]]}),
        ([{"mail": 1}], "mail", [{"mail": MASK}]),
        ({"a": {"x": 1, "y": [2]}, "b": 3}, "a.*", {"a": {"x": MASK, "y": MASK}, "b": 3}),
        ({"a": {"mail": 1}, "b": {"mail": 2}}, "*.mail", {"a": {"mail": MASK}, "b": {"mail": MASK}}),
        ({"mail": {"deep": 1}}, "mail", {"mail": MASK}),
        ({"mail": "x"}, "mail.deep", {"mail": "x"}),
        ({"other": 1}, "mail", {"other": 1}),
    ],
)  # fmt: skip
def test_a_path_leads_through_objects_and_lists(value: Any, field: str, expected: Any) -> None:
    assert json.loads(hidden_in(json.dumps(value).encode(), field) or b"") == expected


def test_a_field_is_found_however_its_name_is_written() -> None:
    assert b"secret" not in (hidden_in(b'{"c\\u0061rd": "secret", "card": "secret"}', "card") or b"")


@pytest.mark.parametrize(
    "value",
    [
        b"card=secret",
        b'{"card": "secret"',
        b'"{\\"card\\": \\"secret\\"}"',
        b"\x00\x00\x00\x00\x01\x0csecret",
        b'{"card": "secret", "x": "' + b"a" * MASKED_BYTES_MAX + b'"}',
        b"[" * 100_000,
        b'{"x": "\xff"}',
        b"",
    ],
)
def test_a_value_in_which_the_field_may_be_anywhere_is_hidden_as_a_whole(value: bytes) -> None:
    assert hidden_in(value, "card") == HIDDEN


def test_keys_are_masked_as_values_are_or_hidden_and_text_stays() -> None:
    mask = Mask((("card",),))
    assert masked(mask, record(None, b"plain")).key == b"plain"
    assert masked(mask, record(None, b'{"card": 1}')).key == '{"card":"•••"}'.encode()
    assert masked(mask, record(None, b"\x00\x00\x00\x00\x01\x06abc")).key == HIDDEN
    by_header = record(None, b"(" + b"4111-1111-1111-0042", __key_schema_id=bytes(5))
    assert masked(mask, by_header).key == HIDDEN, "20 characters of Avro, which are text with their length"
    assert masked(mask, record(None)).value is None
    found = masked(Mask((), hides_key=True, hides_headers=True), record(b"v", b"k", a=b"1", b=None))
    assert (found.key, found.value, found.headers) == (HIDDEN, b"v", (("a", HIDDEN), ("b", None)))


def test_rules_hold_for_the_topics_that_their_pattern_names() -> None:
    masks = Masks(parse_masks(["orders-*:a.b", "orders-eu:c", "p?:@key"]))
    found = masks.of("orders-eu")
    assert found is not None
    assert set(found.paths) == {("a", "b"), ("c",)}
    assert masks.of("orders-us") == Mask((("a", "b"),))
    assert masks.of("p1") == Mask((), hides_key=True)
    assert masks.of("orders") is None
    assert masks.of("my-orders-eu") is None


@pytest.mark.parametrize("text", ["orders", "orders:", ":a", "orders:a..b", "orders:@value", "or/ders:a", "a:b."])
def test_a_rule_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a mask; write TOPICS:FIELD"):
        parse_masks([text])


@pytest.mark.parametrize("text", ["orders:card;orders:email", "orders:card orders:email", "a:b.c| d:@key"])
def test_masks_without_a_comma_between_them_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="has more than one mask; write a comma between two of them"):
        parse_masks([text])


def test_a_field_may_have_a_space_or_a_colon() -> None:
    assert parse_masks(["t:card number", "t:ns:card", "t:a;b"]) == (
        ("t", "a;b"),
        ("t", "card number"),
        ("t", "ns:card"),
    )


def test_many_elements_are_masked_in_portions() -> None:
    value = b"[" + b"{}," * 40_000 + b'{"card":1}]'
    assert len(value) < MASKED_BYTES_MAX
    steps = masked.steps(Mask((("card",),)), record(value))
    assert sum(1 for _ in steps) > 5


# --- on pages ---------------------------------------------------------------------------------------------------------

SECRET = "4111-1111"
TOPIC = "/console/topics/t"


@pytest.fixture
async def masking(broker: RunningBroker) -> AsyncIterator[httpx.AsyncClient]:
    settings = HttpSettings(
        bootstrap=(("127.0.0.1", broker.port),), linger_ms=0, console_masks=(("t*", "card"), ("t*", "@headers"))
    )
    app = create_app(settings, clock=SystemClock(), rng=random.Random(3))
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://localhost") as client,
    ):
        yield client


def test_a_decoded_value_is_masked_and_one_that_cannot_be_decoded_is_hidden() -> None:
    mask = Mask((("card",),))
    decoded = Decoded("JSON Schema", b'{"card":1,"n":2}', is_stored_json=True)
    assert whole(masked_by_schema(mask, decoded, hidden=False)) == decoded._replace(
        json='{"card":"•••","n":2}'.encode()
    )
    assert whole(masked_by_schema(mask, decoded._replace(is_stored_json=False), hidden=False)) is None
    assert whole(masked_by_schema(mask, Decoded("Avro", None, "why"), hidden=False)) is None
    assert whole(masked_by_schema(mask, Decoded("Avro", b"{}"), hidden=True)) is None
    headers = Mask((), hides_headers=True)
    assert whole(masked_by_schema(headers, Decoded("Avro", None, "why"), hidden=False)) is not None
    assert whole(masked_by_schema(headers, Decoded("Avro", b"1"), hidden=False)) == Decoded("Avro", b"1")


async def test_no_page_no_search_and_no_file_of_the_console_tells_a_masked_field(
    masking: httpx.AsyncClient, broker: RunningBroker
) -> None:
    await broker.create_topic("t", 1)
    await broker.create_topic("u", 1)
    (found,) = (await masking.get("/v3/clusters")).json()["data"]
    header = [{"name": "h", "value": base64.b64encode(SECRET.encode()).decode()}]
    for topic in ("t", "u"):
        for value in ({"card": SECRET, "n": "seen"}, f"card={SECRET}"):
            body = {"value": {"data": value}, "headers": header}
            stored = await masking.post(f"/v3/clusters/{found['cluster_id']}/topics/{topic}/records", json=body)
            assert stored.json()["error_code"] == 200, stored.text
    message = f"{TOPIC}/partitions/0/messages/0"
    urls = (f"{TOPIC}/messages", message, f"{TOPIC}/partitions/0/messages/1", f"{TOPIC}/export?offset=0")
    for url in urls:
        text = (await masking.get(url, headers=HTML)).text
        assert MASK in text, url
        assert SECRET not in text, url
        assert base64.b64encode(SECRET.encode()).decode() not in text, url
        other = (await masking.get(url.replace("/t/", "/u/"), headers=HTML)).text
        assert SECRET in other, url
    searched = (await masking.get(f"{TOPIC}/messages?offset=0&contains={SECRET}")).text
    assert "fits the filter, up to the end." in searched
    assert 'messages/0">' in (await masking.get(f"{TOPIC}/messages?offset=0&contains=seen")).text
    for url in (f"{message}/value", f"{message}/resend?to=u"):
        refused = await masking.get(url, headers=HTML)
        assert refused.status_code == 403, url
        assert "firn.console.mask" in refused.text, url
        assert SECRET not in refused.text
    assert (await masking.get(f"{message.replace('/t/', '/u/')}/value")).status_code == 200
