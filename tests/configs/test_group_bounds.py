"""Bounds of group settings: values beyond them are refused, and limited when a bound has changed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.configs import BrokerConfig
from app.configs.group_bounds import (
    BOUND_OF_GROUP,
    GROUP_BOUNDS,
    GroupBound,
    check_group_bounds,
    check_within,
    clamped,
    value_of,
)
from app.core.errors import ErrorCode, RequestRejected


def with_setting(broker: BrokerConfig, setting: str, value: int) -> BrokerConfig:
    return replace(broker, **{setting.replace(".", "_"): value})  # type: ignore[arg-type]


def test_a_bound_names_the_settings_of_kafka() -> None:
    bound = BOUND_OF_GROUP["consumer.session.timeout.ms"]
    assert bound.setting == "group.consumer.session.timeout.ms"
    assert (bound.least, bound.most) == (
        "group.consumer.min.session.timeout.ms",
        "group.consumer.max.session.timeout.ms",
    )
    assert len(BOUND_OF_GROUP) == len(GROUP_BOUNDS) == 9


def test_the_default_settings_are_within_their_bounds() -> None:
    check_group_bounds(BrokerConfig())


@pytest.mark.parametrize("bound", GROUP_BOUNDS, ids=lambda bound: bound.of_group)
def test_values_beyond_a_bound_are_refused_and_limited_to_it(bound: GroupBound) -> None:
    broker = BrokerConfig()
    least, most = value_of(broker, bound.least), value_of(broker, bound.most)
    for value in (least, most):
        check_within(broker, bound, bound.of_group, value)
        assert clamped(broker, bound, value) == value
    for value, nearest, words in ((least - 1, least, "greater"), (most + 1, most, "less")):
        with pytest.raises(RequestRejected, match=f"{bound.of_group} must be {words} than or equal to") as refused:
            check_within(broker, bound, bound.of_group, value)
        assert refused.value.code is ErrorCode.INVALID_CONFIG
        assert clamped(broker, bound, value) == nearest
        with pytest.raises(RequestRejected, match=f"{bound.setting} must be {words}"):
            check_group_bounds(with_setting(broker, bound.setting, value))


@pytest.mark.parametrize("bound", GROUP_BOUNDS, ids=lambda bound: bound.of_group)
def test_bounds_that_cross_are_refused(bound: GroupBound) -> None:
    broker = BrokerConfig()
    crossed = with_setting(broker, bound.most, value_of(broker, bound.least) - 1)
    with pytest.raises(RequestRejected, match=f"{bound.most} must be greater than or equal to {bound.least}"):
        check_group_bounds(crossed)


def test_the_bounds_of_classic_groups_may_be_equal_and_not_cross() -> None:
    broker = BrokerConfig()
    least = broker.group_min_session_timeout_ms
    check_group_bounds(replace(broker, group_max_session_timeout_ms=least))
    with pytest.raises(RequestRejected, match=r"group\.max\.session\.timeout\.ms must be greater"):
        check_group_bounds(replace(broker, group_max_session_timeout_ms=least - 1))


@pytest.mark.parametrize("kind", ["consumer", "share"])
def test_a_heartbeat_is_sooner_than_the_end_of_the_session(kind: str) -> None:
    broker = BrokerConfig()
    interval_ms = value_of(broker, f"group.{kind}.heartbeat.interval.ms")
    lowered = with_setting(broker, f"group.{kind}.min.session.timeout.ms", interval_ms)
    check_group_bounds(with_setting(lowered, f"group.{kind}.session.timeout.ms", interval_ms + 1))
    with pytest.raises(RequestRejected, match=rf"group\.{kind}\.heartbeat\.interval\.ms must be less"):
        check_group_bounds(with_setting(lowered, f"group.{kind}.session.timeout.ms", interval_ms))
