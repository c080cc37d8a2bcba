"""The error of a payload that is no value of its schema. Tests: ``tests/registry/test_payloads.py``."""

from __future__ import annotations


class PayloadInvalid(ValueError):
    """A payload is no value of its schema. The message is a clause that says why."""
