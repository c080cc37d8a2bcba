"""Patterns and formats of JSON Schema, beside Python's own patterns and another library."""

from __future__ import annotations

import re

import jsonschema
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.registry.parsing.limits import StepBudget
from app.registry.payloads import patterns
from app.registry.payloads.faults import PayloadUnchecked
from app.registry.payloads.patterns import FORMATS, has_format, matches
from app.registry.refusals import TooComplex

PLAIN = [
    "a",
    "^a",
    "a$",
    "^a+b?$",
    "[ab]{2}",
    "a|c",
    "^\\d{3}-\\d{4}$",
    "\\w+@\\w+",
    "(a+)+$",
    "^$",
    "\\u0061",
    "\\\\u0061",
    ".",
]


def steps() -> StepBudget:
    return StepBudget(100_000)


@given(st.sampled_from(PLAIN), st.text("abc-@0123\\u6ä", max_size=10))
@example("\\w+@\\w+", "0@ä")
def test_a_pattern_matches_where_another_library_says_so(pattern: str, text: str) -> None:
    """Classes such as ``\\w`` are of ASCII in JSON Schema's patterns, as ECMA 262 says."""
    assert matches(pattern, text, steps()) == (re.search(pattern, text, re.ASCII) is not None)


@pytest.mark.parametrize(
    "pattern", ["(?=a)", "(?<!a)b", "(a)\\1", "(", "a{1,100000}", "x" * 1_001, "(?:[a-z]{1,900}){1,900}"]
)
def test_a_pattern_that_cannot_be_run_in_linear_time_and_little_memory_is_not_checked(pattern: str) -> None:
    assert matches(pattern, "a", steps()) is None


def test_a_match_costs_steps_by_the_text_and_the_program() -> None:
    def cost(pattern: str, text: str) -> int:
        matches(pattern, text, steps())  # compiled before
        budget = steps()
        matches(pattern, text, budget)
        return 100_000 - budget.left

    short, long = cost("^(a+)+$", "a" * 100), cost("^(a+)+$", "a" * 10_000)
    assert 50 * short < long < 1_000
    assert cost("(a{1,30}b?){1,20}", "a" * 100) > 5 * short
    with pytest.raises(TooComplex):
        matches("^(a+)+$", "a" * 10_000, StepBudget(100))


def test_a_pattern_that_is_new_costs_more() -> None:
    patterns._compiled.cache_clear()
    first, second = steps(), steps()
    matches("abc", "a", first)
    matches("abc", "a", second)
    assert second.left - first.left == patterns.COMPILE_STEPS


def test_one_match_is_bounded() -> None:
    with pytest.raises(PayloadUnchecked):
        matches("^(a+)+$", "a" * patterns.WORK_MAX, StepBudget(10**9))


GOOD = {
    "date": ["2024-02-29"],
    "time": ["07:08:09Z", "07:08:09.123+01:00", "23:59:60Z"],
    "date-time": ["2024-05-06T07:08:09Z", "2024-05-06t07:08:09.1-07:00"],
    "email": ["a@b.example"],
    "hostname": ["a", "a-b.example"],
    "ipv4": ["127.0.0.1"],
    "ipv6": ["::1", "2001:db8::ff00:42:8329"],
    "uri": ["https://a.example/b?c#d", "urn:isbn:0451450523"],
    "uri-reference": ["../b", "#d", ""],
    "uuid": ["2EB8AA08-aa98-11ea-b4aa-73b441d16380"],
    "json-pointer": ["", "/a/0/~0~1"],
}
BAD = {
    "date": ["2023-02-29", "2024-2-9", "20240506", "2024-05-06T", "٢٠٢٤-٠٥-٠٦"],
    "time": ["07:08", "24:00:00Z", "07:08:09", "noon"],
    "date-time": ["2024-05-06", "2024-05-06T07:08:09", "2024-13-06T07:08:09Z"],
    "email": ["a", "a@", "@b", "a b@c"],
    "hostname": ["-a", "a..b", "a_b", "a" * 64, ".".join(["a" * 60] * 5)],
    "ipv4": ["127.0.0", "256.0.0.1", "::1"],
    "ipv6": ["1", ":::", "fe80::1%eth0"],
    "uri": ["b", "//a", "a b:c", "1:x"],
    "uri-reference": ["a b", "<"],
    "uuid": ["2eb8aa08aa9811eab4aa73b441d16380", "2eb8aa08-aa98-11ea-b4aa-73b441d1638x"],
    "json-pointer": ["a", "/~2", "/~"],
}


def test_every_format_has_examples() -> None:
    assert FORMATS.keys() == GOOD.keys() == BAD.keys()


@pytest.mark.parametrize("name", sorted(FORMATS))
def test_a_format_is_told_by_its_form(name: str) -> None:
    for text in GOOD[name]:
        assert has_format(name, text, steps()), text
    for text in BAD[name]:
        assert not has_format(name, text, steps()), text
    assert not has_format(name, " " * 5_000, steps())


@pytest.mark.parametrize("name", ["date", "email", "ipv4", "ipv6"])
def test_a_format_that_another_library_knows_has_the_same_examples(name: str) -> None:
    checker = jsonschema.Draft7Validator.FORMAT_CHECKER
    for text in GOOD[name]:
        assert checker.conforms(text, name), text


def test_an_unknown_format_is_not_checked() -> None:
    assert has_format("of mine", "anything", StepBudget(0))


@pytest.mark.parametrize("name", sorted(FORMATS))
@pytest.mark.parametrize("piece", ["a", "/", "~0", ".", ":", "0", "-", "a@", "a."])
def test_a_long_text_costs_steps_and_raises_nothing_else(name: str, piece: str) -> None:
    budget = steps()
    has_format(name, (piece * 4_000)[:4_000], budget)
    assert budget.left <= 100_000 - 200
