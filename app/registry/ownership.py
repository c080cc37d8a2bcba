"""The record of Firn's own in `_schemas`: the registry is Firn's, and these are the greatest ids that its contexts ever gave.

The leader of the topic writes it in the batch of each new id. Its key is that of Confluent's no-operation record, so that other
registries skip it. The newest one counts. Ids at or below those in it are never given again (ADR 0041, SR3). Tests:
``tests/registry/test_ownership.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

OWNER_KEY: Final = b'{"keytype":"NOOP","magic":0}'
_FORM: Final = 1


class _Value(msgspec.Struct, frozen=True):
    firn: int
    ids: dict[str, int] = {}
    floor: int = 0
    owns: bool = True
    skipped: int = -1


class Ownership(NamedTuple):
    """The content of the record."""

    greatest: Mapping[str, int]
    """The greatest id of each context, by the context's name; the default context is ``.``."""
    floor: int = 0
    """The greatest id of every context that is not in ``greatest``."""
    owns: bool = True
    """Whether the log is Firn's. False: it was written to a log that had lost all records, and any registry may go on."""
    skipped: int = -1
    """The leader epoch of the last unclean election after which ids were skipped; -1 for none."""

    def greatest_of(self, context: str) -> int:
        """The greatest id that may have been given in a context; the next id is above it."""
        return max(self.greatest.get(context, 0), self.floor)


def ownership_of(key: bytes, value: bytes | None) -> Ownership | None:
    """The content of a record of `_schemas`; None if it is another record, as that of another registry."""
    if key != OWNER_KEY or value is None:
        return None
    try:
        found = msgspec.json.decode(value, type=_Value)
    except (msgspec.MsgspecError, RecursionError):
        return None  # the value of another registry
    return Ownership(found.ids, found.floor, found.owns, found.skipped) if found.firn == _FORM else None


def encode_ownership(ownership: Ownership) -> bytes:
    """The value of the record."""
    greatest, floor, owns, skipped = ownership
    return msgspec.json.encode(_Value(_FORM, dict(greatest), floor, owns, skipped))
