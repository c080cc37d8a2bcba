"""The check of the compacted topic's load: whether the cleaner was at work, without brokers."""

from __future__ import annotations

import pytest

from tests.faults.keyed_load import KEYS, LEFT_MAX, repeats_left


def written(count: int) -> list[bytes]:
    """The key of each record that somebody wrote, in order."""
    return [b"%d" % (number * 7 % KEYS) for number in range(count)]


@pytest.mark.parametrize("count", [KEYS + 1, 30, 35, 46, 1_000])
def test_a_log_with_one_record_of_each_key_is_clean_however_few_records_were_written(count: int) -> None:
    keys = set(written(count))
    assert repeats_left(count, len(keys), keys) == 0.0


@pytest.mark.parametrize("count", [KEYS + 1, 30, 35, 46, 1_000])
def test_a_log_that_was_never_cleaned_is_not_clean(count: int) -> None:
    keys = written(count)
    assert repeats_left(count, len(set(keys)), keys) == 1.0


def test_records_of_the_segment_that_is_written_to_may_be_left() -> None:
    keys = written(200)
    cleaned = [*dict.fromkeys(keys[:-11]), *keys[-11:]]
    assert 0.0 < repeats_left(200, KEYS, cleaned) < LEFT_MAX


def test_nothing_is_called_clean_as_long_as_no_key_was_written_twice() -> None:
    keys = written(KEYS)
    assert repeats_left(KEYS, KEYS, keys) >= LEFT_MAX
