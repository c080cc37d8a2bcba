"""Metadata and rules that a config adds."""

from __future__ import annotations

from typing import Any

import pytest

from app.registry.extras import ITEMS_MAX, merged
from app.registry.refusals import RegistryRefusal


@pytest.mark.parametrize(
    ("under", "over", "both"),
    [
        (None, None, None),
        ({"a": 1}, None, {"a": 1}),
        (None, {"a": 1}, {"a": 1}),
        ({}, {}, {}),
        ({"properties": {"x": "1", "y": "1"}}, {"properties": {"y": "2"}}, {"properties": {"x": "1", "y": "2"}}),
        ({"tags": {"f": ["A"]}}, {"tags": {"f": ["B"], "g": ["C"]}}, {"tags": {"f": ["B"], "g": ["C"]}}),
        ({"sensitive": ["x", "y"]}, {"sensitive": ["y", "z"]}, {"sensitive": ["x", "y", "z"]}),
        ({"domainRules": [{"name": "x"}]}, {"domainRules": None}, {"domainRules": [{"name": "x"}]}),
        (
            {"domainRules": [{"name": "x", "type": "A"}, {"name": "y"}], "migrationRules": [{"name": "m"}]},
            {"domainRules": [{"name": "z"}, {"name": "x", "type": "B"}]},
            {
                "domainRules": [{"name": "y"}, {"name": "z"}, {"name": "x", "type": "B"}],
                "migrationRules": [{"name": "m"}],
            },
        ),
    ],
)
def test_the_later_layer_replaces_equal_names_and_keeps_the_others(under: Any, over: Any, both: Any) -> None:
    assert merged(under, over) == both


@pytest.mark.parametrize("other", [1, "text", [], [None, 1, {"name": 2}], {"sensitive": 3}, {"sensitive": [None, [1]]}])
def test_members_of_other_kinds_are_replaced_whole(other: Any) -> None:
    layer = {"sensitive": {"x": 1}}
    assert merged(layer, other) == other
    assert merged(other, layer) == layer


def test_a_layer_changes_nothing_when_it_is_laid_a_second_time() -> None:
    default, override = {"sensitive": ["a", "b"]}, {"sensitive": ["c"]}
    once = merged(merged(default, {"sensitive": ["b", "d"]}), override)
    assert merged(merged(default, once), override) == once


def test_lists_that_are_long_are_refused_instead_of_joined() -> None:
    rules = [{"name": str(number)} for number in range(ITEMS_MAX)]
    assert merged({"domainRules": rules[1:]}, {"domainRules": rules[:1]}) == {"domainRules": rules[1:] + rules[:1]}
    with pytest.raises(RegistryRefusal, match="10001 rules"):
        merged({"domainRules": rules}, {"domainRules": [{"name": "x"}]})
    halves = {"domainRules": rules[::2], "migrationRules": rules[::2]}
    with pytest.raises(RegistryRefusal, match="10002 rules"):
        merged(halves, {"domainRules": rules[:1], "migrationRules": rules[:1]})
    assert merged({"domainRules": rules}, None) == {"domainRules": rules}
