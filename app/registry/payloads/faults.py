"""The error of a payload that is no value of its schema. Tests: ``tests/registry/test_payloads.py``."""

from __future__ import annotations


class PayloadInvalid(ValueError):
    """A payload is no value of its schema. The message is a clause that says why."""


class PayloadUnchecked(PayloadInvalid):
    """Whether a payload is a value of its schema was not found out: it is too large, or the check broke down. The cause is
    the error of a check that must raise none."""
