"""Quotas in the cluster log: entities, limits, what is refused, and filters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.errors import ErrorCode, RequestRejected
from app.core.units import LogSequence
from app.metadata.changes.quotas import (
    CLIENT_ID,
    DEFAULT,
    ENTITY_TYPES,
    IP,
    TIER_ENTITY,
    USER,
    Component,
    Match,
    QuotaOperation,
    alter_quotas,
    matching_quotas,
    quota_entity,
)
from app.metadata.image.draft import ImageDraft
from app.metadata.image.image import ClusterImage, ImageDelta
from app.metadata.image.records import LEVEL_FEATURE, SECURITY_LEVEL, QuotaEntity, feature_change
from tests.metadata.several import around

NAMES = st.one_of(st.none(), st.just(DEFAULT), st.sampled_from(["a", "b", "*", "=", "=a", "ä/ö"]))
ENTITIES = st.one_of(
    st.builds(QuotaEntity, NAMES, NAMES, st.none()).filter(lambda one: any(part is not None for part in one)),
    st.builds(QuotaEntity, st.none(), st.none(), st.sampled_from([DEFAULT, "127.0.0.1", "::1"])),
)


def at_level(level: int = SECURITY_LEVEL):
    draft = ImageDraft(ClusterImage())
    draft.apply([feature_change(LEVEL_FEATURE, level)])
    return draft


def refusal(work) -> RequestRejected:
    with pytest.raises(RequestRejected) as refused:
        work()
    return refused.value


@given(st.dictionaries(ENTITIES, st.floats(0.001, 1e9), min_size=1))
def test_every_entity_has_its_own_limits_and_loses_them_with_the_last(asked) -> None:
    draft = at_level()

    def key(entity: QuotaEntity) -> str:
        return "request_percentage" if entity.ip is None else "connection_creation_rate"

    for entity, limit in asked.items():
        value = limit if entity.ip is None else max(1.0, float(int(limit)))
        draft.apply(alter_quotas(draft, around(), entity, [QuotaOperation(key(entity), value)]).records)
    image = draft.freeze(LogSequence(1))
    assert set(image.quotas) == set(asked)
    again = ImageDraft(image)
    for entity in asked:
        assert list(image.quotas[entity]) == [key(entity)]
        again.apply(alter_quotas(again, around(), entity, [QuotaOperation(key(entity), None)]).records)
    emptied = again.freeze(LogSequence(2))
    assert emptied.quotas == {}
    assert set(image.quotas) == set(asked), "an image never changes"
    assert ImageDelta.between(image, emptied).quotas
    assert not ImageDelta.between(emptied, at_level().freeze(LogSequence(3))).quotas


def test_what_brokers_copy_to_the_store_is_limited_for_the_default_user() -> None:
    draft = at_level()
    draft.apply(alter_quotas(draft, around(), TIER_ENTITY, [QuotaOperation("firn.tier_byte_rate", 1000.0)]).records)
    assert draft.quotas == {TIER_ENTITY: {"firn.tier_byte_rate": 1000.0}}


def test_limits_that_are_as_asked_already_make_no_entry() -> None:
    draft = at_level()
    entity = QuotaEntity("a", None, None)
    asked = [QuotaOperation("producer_byte_rate", 10.0), QuotaOperation("consumer_byte_rate", 20.0)]
    draft.apply(alter_quotas(draft, around(), entity, asked).records)
    assert draft.quotas[entity] == {"producer_byte_rate": 10.0, "consumer_byte_rate": 20.0}
    assert not alter_quotas(draft, around(), entity, asked[:1]).records
    assert not alter_quotas(draft, around(), entity, [QuotaOperation("request_percentage", None)]).records


@pytest.mark.parametrize("level", range(SECURITY_LEVEL))
def test_below_their_level_quotas_are_refused_with_the_way_out(level: int) -> None:
    asked = [QuotaOperation("producer_byte_rate", 1.0)]
    error = refusal(lambda: alter_quotas(at_level(level), around(), QuotaEntity("a", None, None), asked))
    assert error.code is ErrorCode.INVALID_UPDATE_VERSION
    assert "firn cluster features --upgrade" in str(error)


@pytest.mark.parametrize(
    ("entity", "key", "value"),
    [
        (QuotaEntity("a", None, None), "producer_rate", 1.0),
        (QuotaEntity("a", None, None), "connection_creation_rate", 1.0),
        (QuotaEntity(None, None, "::1"), "producer_byte_rate", 1.0),
        (QuotaEntity("a", None, None), "producer_byte_rate", 0.0),
        (QuotaEntity("a", None, None), "producer_byte_rate", -1.0),
        (QuotaEntity("a", None, None), "producer_byte_rate", 1.5),
        (QuotaEntity("a", None, None), "producer_byte_rate", float("nan")),
        (QuotaEntity("a", None, None), "producer_byte_rate", float("inf")),
        (QuotaEntity("a", None, None), "request_percentage", float("inf")),
        (QuotaEntity(None, None, "::1"), "connection_creation_rate", 1e12),
        (QuotaEntity("a", None, None), "firn.tier_byte_rate", 1000.0),
        (QuotaEntity(DEFAULT, DEFAULT, None), "firn.tier_byte_rate", 1000.0),
        (QuotaEntity(None, DEFAULT, None), "firn.tier_byte_rate", 1000.0),
        (QuotaEntity(None, None, DEFAULT), "firn.tier_byte_rate", 1000.0),
    ],
)
def test_a_limit_that_cannot_be_is_refused_and_changes_nothing(entity, key, value) -> None:
    draft = at_level()
    asked = [QuotaOperation("request_percentage", 1.0)] if entity.ip is None else []
    error = refusal(lambda: alter_quotas(draft, around(), entity, [*asked, QuotaOperation(key, value)]))
    assert error.code is ErrorCode.INVALID_REQUEST
    assert key in str(error)
    assert draft.quotas == {}


@pytest.mark.parametrize(
    "parts",
    [
        [],
        [("group", "a")],
        [(USER, "")],
        [(USER, "a"), (USER, "b")],
        [(IP, "127.0.0.1"), (USER, "a")],
        [(IP, "localhost.")],
    ],
)
def test_an_entity_that_cannot_be_is_refused(parts) -> None:
    assert refusal(lambda: quota_entity(parts)).code is ErrorCode.INVALID_REQUEST


def test_addresses_are_written_in_one_way() -> None:
    assert quota_entity([(IP, "0:0:0:0:0:0:0:1")]) == QuotaEntity(None, None, "::1")
    assert quota_entity([(IP, "::ffff:10.0.0.1")]) == QuotaEntity(None, None, "10.0.0.1")
    assert quota_entity([(CLIENT_ID, None), (USER, "a")]) == QuotaEntity("a", DEFAULT, None)


def test_a_limit_is_changed_once_in_a_request() -> None:
    twice = [QuotaOperation("request_percentage", 1.0), QuotaOperation("request_percentage", None)]
    error = refusal(lambda: alter_quotas(at_level(), around(), QuotaEntity("a", None, None), twice))
    assert error.code is ErrorCode.INVALID_REQUEST


ALL = {
    QuotaEntity("a", None, None): {"request_percentage": 1.0},
    QuotaEntity(DEFAULT, None, None): {"request_percentage": 2.0},
    QuotaEntity("a", "c", None): {"request_percentage": 3.0},
    QuotaEntity("a", DEFAULT, None): {"request_percentage": 4.0},
    QuotaEntity(None, "c", None): {"request_percentage": 5.0},
    QuotaEntity(None, None, DEFAULT): {"connection_creation_rate": 6.0},
}


@pytest.mark.parametrize(
    ("components", "strict", "found"),
    [
        ([], False, {1, 2, 3, 4, 5, 6}),
        ([], True, set()),
        ([Component(USER, Match.EXACT, "a")], False, {1, 3, 4}),
        ([Component(USER, Match.EXACT, "a")], True, {1}),
        ([Component(USER, Match.DEFAULT)], False, {2}),
        ([Component(USER, Match.ANY)], False, {1, 2, 3, 4}),
        ([Component(USER, Match.ANY), Component(CLIENT_ID, Match.DEFAULT)], True, {4}),
        ([Component(USER, Match.ANY), Component(CLIENT_ID, Match.ANY)], False, {3, 4}),
        ([Component(CLIENT_ID, Match.EXACT, "c")], True, {5}),
        ([Component(IP, Match.ANY)], True, {6}),
    ],
)
def test_a_filter_lets_through_what_kafka_s_lets_through(components, strict, found) -> None:
    limits = [next(iter(one.values())) for _, one in matching_quotas(ALL, components, strict=strict)]
    assert sorted(limits) == sorted(map(float, found))


def test_a_filter_finds_an_address_in_each_of_its_forms() -> None:
    quotas = {quota_entity([(IP, "10.0.0.1")]): {"connection_creation_rate": 1.0}}
    for text in ("10.0.0.1", "::ffff:10.0.0.1"):
        assert len(list(matching_quotas(quotas, [Component(IP, Match.EXACT, text)], strict=True))) == 1
    assert not list(matching_quotas(quotas, [Component(IP, Match.EXACT, "10.0.0.2")], strict=True))


def test_filters_that_cannot_be_are_refused() -> None:
    def code(*components: Component) -> ErrorCode:
        return refusal(lambda: list(matching_quotas(ALL, components, strict=False))).code

    assert code(Component(USER, Match.ANY), Component(USER, Match.ANY)) is ErrorCode.INVALID_REQUEST
    assert code(Component(USER, Match.ANY), Component(IP, Match.ANY)) is ErrorCode.INVALID_REQUEST
    assert code(Component("group", Match.ANY)) is ErrorCode.UNSUPPORTED_VERSION
    assert ENTITY_TYPES == (USER, CLIENT_ID, IP)
