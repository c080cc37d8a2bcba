"""Refusals of the registry, in the numbers of Confluent's Schema Registry API. The first three digits are the HTTP status."""

from __future__ import annotations

from enum import IntEnum
from typing import Final


class Code(IntEnum):
    """Error codes of the registry's API."""

    INCOMPATIBLE = 409
    SUBJECT_NOT_FOUND = 40401
    VERSION_NOT_FOUND = 40402
    SCHEMA_NOT_FOUND = 40403
    SUBJECT_SOFT_DELETED = 40404
    SUBJECT_NOT_SOFT_DELETED = 40405
    VERSION_SOFT_DELETED = 40406
    VERSION_NOT_SOFT_DELETED = 40407
    SUBJECT_HAS_NO_LEVEL = 40408
    SUBJECT_HAS_NO_MODE = 40409
    INVALID_SCHEMA = 42201
    INVALID_VERSION = 42202
    INVALID_LEVEL = 42203
    INVALID_MODE = 42204
    NOT_PERMITTED = 42205
    REFERENCE_EXISTS = 42206
    ID_DOES_NOT_MATCH = 42207
    INVALID_SUBJECT = 42208
    SCHEMA_TOO_LARGE = 42209
    EXTRA_NOT_INSTALLED = 50101


class RegistryRefusal(Exception):
    """The registry refuses a request. Nothing was written."""

    def __init__(self, code: Code, message: str) -> None:
        super().__init__(message)
        self.code: Final = code
        self.message: Final = message

    @property
    def status(self) -> int:
        """The HTTP status."""
        return int(self.code) // 100 if self.code > 999 else int(self.code)


class SchemaInvalid(Exception):
    """A text is no schema of its type, or passes a limit. Its argument is the reason, without a full stop."""


class TooComplex(SchemaInvalid):
    """Work on a schema would pass the limit of steps."""

    def __init__(self) -> None:
        super().__init__("the schema is too complex to be checked")


class ParserMissing(Exception):
    """The package that reads schemas of this type is not installed."""
