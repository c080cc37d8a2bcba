"""The codes of the registry's refusals: clients compare the numbers, and the HTTP status follows from them."""

from __future__ import annotations

import pytest

from app.registry.refusals import Code, RegistryRefusal

NUMBERS = {
    40401: "SUBJECT_NOT_FOUND",
    40402: "VERSION_NOT_FOUND",
    40403: "SCHEMA_NOT_FOUND",
    40404: "SUBJECT_SOFT_DELETED",
    40405: "SUBJECT_NOT_SOFT_DELETED",
    40406: "VERSION_SOFT_DELETED",
    40407: "VERSION_NOT_SOFT_DELETED",
    40408: "SUBJECT_HAS_NO_LEVEL",
    40409: "SUBJECT_HAS_NO_MODE",
    409: "INCOMPATIBLE",
    42201: "INVALID_SCHEMA",
    42202: "INVALID_VERSION",
    42203: "INVALID_LEVEL",
    42204: "INVALID_MODE",
    42205: "NOT_PERMITTED",
    42206: "REFERENCE_EXISTS",
    42207: "ID_DOES_NOT_MATCH",
    42208: "INVALID_SUBJECT",
    42209: "SCHEMA_TOO_LARGE",
    50101: "EXTRA_NOT_INSTALLED",
}
"""The numbers that clients know. A new code is added here too; no number changes."""


def test_no_code_changes_its_number() -> None:
    assert {int(code): code.name for code in Code} == NUMBERS


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (Code.INCOMPATIBLE, 409),
        (Code.SUBJECT_NOT_FOUND, 404),
        (Code.SUBJECT_HAS_NO_MODE, 404),
        (Code.SCHEMA_TOO_LARGE, 422),
        (Code.EXTRA_NOT_INSTALLED, 501),
    ],
)
def test_the_first_three_digits_are_the_http_status(code: Code, status: int) -> None:
    refusal = RegistryRefusal(code, "It is refused.")
    assert refusal.status == status
    assert (refusal.code, refusal.message, str(refusal)) == (code, "It is refused.", "It is refused.")
