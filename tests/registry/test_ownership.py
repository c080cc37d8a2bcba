"""The record of Firn's own in `_schemas`."""

from __future__ import annotations

import pytest

from app.registry.ownership import OWNER_KEY, Ownership, encode_ownership, ownership_of
from app.registry.subjects import read_subject


def test_the_key_is_that_of_a_no_operation_which_other_registries_skip() -> None:
    assert OWNER_KEY == b'{"keytype":"NOOP","magic":0}'


def test_what_is_written_is_read_again() -> None:
    written = Ownership({".": 7, ".other": 3}, 1_000)
    assert encode_ownership(written) == b'{"firn":1,"ids":{".":7,".other":3},"floor":1000,"owns":true,"skipped":-1}'
    assert ownership_of(OWNER_KEY, encode_ownership(written)) == written


@pytest.mark.parametrize("value", [None, b"", b"null", b"{}", b'{"firn":2}', b'{"firn":1,"ids":[]}', b"[" * 10_000])
def test_the_record_of_another_registry_or_of_another_form_is_none(value: bytes | None) -> None:
    assert ownership_of(OWNER_KEY, value) is None
    assert ownership_of(b"{}", encode_ownership(Ownership({}))) is None


def test_a_context_without_a_greatest_id_has_the_floor() -> None:
    ownership = Ownership({".": 7}, 5)
    assert (ownership.greatest_of("."), ownership.greatest_of(".new")) == (7, 5)


@pytest.mark.parametrize(
    ("subject", "parts"),
    [
        ("t-value", (".", "t-value")),
        (":.ctx:t-value", (".ctx", "t-value")),
        (":.:t-value", (".", "t-value")),
        (":.ctx:", (".ctx", "")),
        (":.unfinished", (".", ":.unfinished")),
    ],
)
def test_the_context_of_a_subject_is_between_its_colons(subject: str, parts: tuple[str, str]) -> None:
    assert read_subject(subject) == parts
