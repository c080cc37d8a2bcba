"""Proofs of the entries and snapshots of the cluster log (ADR 0036): who has made them, and that they lie where they belong. Pure.

A proof is HMAC-SHA-256 under a key that brokers alone have. ``docs/formats.md`` ("Proofs") lists the bytes that it covers.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from app.core.errors import ConfigError, CorruptionError, clause
from app.core.turns import Steps, slices
from app.metadata.log.log_format import KeyValue, Proof

ADDED_AT_ONCE: Final = 200
"""Records of one step: about 0.3 ms."""
KEY_BYTES_MIN: Final = 32
KEY_ID_BYTES: Final = 8
KEYS_MAX: Final = 16
CONTEXT: Final = b"firn cluster log 1\n"
KEY_CONTEXT: Final = b"firn cluster log key\n"
TOMBSTONE: Final = 0xFFFF_FFFF
SETTING: Final = "firn.cluster.log.key"
INTRODUCING: Final = "firn.cluster.log.key.introducing"

_SIZE: Final = struct.Struct(">I")
_TIME: Final = struct.Struct(">q")


class Untrusted(CorruptionError):
    """An object of the cluster log does not prove that a broker wrote it there. The broker must stop."""


class LogKey(NamedTuple):
    """One key."""

    key_id: bytes
    secret: bytes

    def __repr__(self) -> str:
        return f"LogKey({self.key_id.hex()})"


class Mark(NamedTuple):
    """The remembered part of a proof: its key, empty if there is no proof; and whether its writer was introducing the key."""

    key_id: bytes
    introducing: bool


NO_MARK: Final = Mark(b"", True)
"""Of an object without a proof."""


def parse_keys(text: str) -> tuple[LogKey, ...]:
    """The keys of a setting or file: base64 of 32 bytes or more each, separated by commas or in lines of their own.

    Raises: ValueError, which has nothing of the keys.
    """
    keys = []
    for number, word in enumerate(text.replace(",", "\n").split(), 1):
        try:
            secret = base64.b64decode(word, validate=True)
        except (binascii.Error, ValueError):
            raise ValueError(f"key {number} is not base64; make one with `openssl rand -base64 32`") from None
        if len(secret) < KEY_BYTES_MIN:
            raise ValueError(
                f"key {number} has {len(secret)} bytes, and {KEY_BYTES_MIN} are the least; make one with `openssl rand -base64 32`"
            )
        keys.append(LogKey(hashlib.sha256(KEY_CONTEXT + secret).digest()[:KEY_ID_BYTES], secret))
    if not keys:
        raise ValueError("it has no key")
    if len(keys) > KEYS_MAX:
        raise ValueError(f"it has {len(keys)} keys, and {KEYS_MAX} are the most")
    if len({one.key_id for one in keys}) != len(keys):
        raise ValueError("it has the same key twice")
    return tuple(keys)


class Prover:
    """Computes the proof of one object, record by record."""

    __slots__ = ("_introducing", "_key", "_mac")

    def __init__(self, key: LogKey, name: str, *, introducing: bool, timestamp_ms: int, header: bytes) -> None:
        """``name``: the object's key in the store. ``header``: the value of its header record, without a proof."""
        self._key = key
        self._introducing = introducing
        encoded = name.encode()
        self._mac = hmac.new(key.secret, CONTEXT, hashlib.sha256)
        self._mac.update(_SIZE.pack(len(encoded)) + encoded)
        self._mac.update(b"\1" if introducing else b"\0")
        self._mac.update(_TIME.pack(timestamp_ms))
        self._mac.update(_SIZE.pack(len(header)) + header)

    def add(self, key: bytes, value: bytes | None) -> None:
        """The next record."""
        update, size = self._mac.update, _SIZE.pack
        update(size(len(key)))
        update(key)
        if value is None:
            update(size(TOMBSTONE))
        else:
            update(size(len(value)))
            update(value)

    def add_all(self, records: Sequence[KeyValue]) -> None:
        for key, value in records:
            self.add(key, value)

    def adding(self, records: Sequence[KeyValue]) -> Steps[None]:
        """As ``add_all``, in steps."""
        for some in slices(records, ADDED_AT_ONCE):
            self.add_all(some)
            yield

    def proof(self) -> Proof:
        return Proof(1, self._key.key_id, self._mac.digest(), self._introducing)


class Proofs:
    """The proofs that a broker demands in the objects that it reads, and puts into those that it writes."""

    __slots__ = ("_by_id", "_first", "_introducing")

    def __init__(self, keys: Sequence[LogKey] = (), *, introducing: bool = False) -> None:
        """Without keys no proof is written, and only proofs that are marked as *introducing* are accepted (K5)."""
        self._by_id: Mapping[bytes, LogKey] = {one.key_id: one for one in keys}
        self._first = keys[0] if keys else None
        self._introducing = introducing

    def __repr__(self) -> str:
        return f"Proofs({[one.hex() for one in self._by_id]})"

    @classmethod
    def of_settings(cls, keys: str | None, *, introducing: bool) -> Proofs:
        """Raises: ConfigError."""
        if not keys:
            if introducing:
                raise ConfigError(f"{INTRODUCING} is true, and there is no key to introduce: name it with {SETTING}.")
            return cls()
        try:
            return cls(parse_keys(keys), introducing=introducing)
        except ValueError as error:
            raise ConfigError(f"{SETTING}: {clause(error)}.") from None

    @property
    def mark(self) -> Mark | None:
        """The mark of the proofs that are written; None if none are."""
        return None if self._first is None else Mark(self._first.key_id, self._introducing)

    def prover(self, name: str, *, timestamp_ms: int, header: bytes) -> Prover | None:
        """For an object that is to be written; None if it gets no proof."""
        if self._first is None:
            return None
        return Prover(self._first, name, introducing=self._introducing, timestamp_ms=timestamp_ms, header=header)

    def checker(self, name: str, proof: Proof | None, *, timestamp_ms: int, header: bytes) -> Checker:
        """For an object that is read. Raises: Untrusted, if its proof cannot be checked and is demanded."""
        if self._first is None:
            if proof is not None and not proof.introducing:
                raise Untrusted(
                    f"{name} was written by a broker with {SETTING}, and this broker has no key: give it the other brokers' key."
                )
            return Checker(name, None, None)
        if proof is None:
            if self._introducing:
                return Checker(name, None, None)
            raise Untrusted(
                f"{name} has no proof that a broker with {SETTING} wrote it: restore cluster/ from a copy that you trust or, while "
                f"not all brokers have the key yet, set {INTRODUCING}=true."
            )
        key = self._by_id.get(proof.key_id)
        if key is None:
            known = ", ".join(one.hex() for one in self._by_id)
            raise Untrusted(
                f"{name} was proven with the key {proof.key_id.hex()}, and this broker has {known} only: add the key to {SETTING}, "
                "or, if no broker ever had it, restore cluster/ from a copy that you trust."
            )
        prover = Prover(key, name, introducing=proof.introducing, timestamp_ms=timestamp_ms, header=header)
        return Checker(name, proof, prover)


class Checker:
    """Checks the proof of one object once it has all of its records."""

    __slots__ = ("_name", "_proof", "_prover")

    def __init__(self, name: str, proof: Proof | None, prover: Prover | None) -> None:
        self._name = name
        self._proof = proof
        self._prover = prover

    def add_all(self, records: Sequence[KeyValue]) -> None:
        if self._prover is not None:
            self._prover.add_all(records)

    def adding(self, records: Sequence[KeyValue]) -> Steps[None]:
        """As ``add_all``, in steps."""
        if self._prover is not None:
            yield from self._prover.adding(records)

    def check(self) -> Mark:
        """Raises: Untrusted."""
        if self._prover is None or self._proof is None:
            return NO_MARK
        if not hmac.compare_digest(self._prover.proof().mac, self._proof.mac):
            raise Untrusted(
                f"{self._name} was changed, or lies under another name than a broker gave it: restore cluster/ from a copy that "
                "you trust, and find out who can write there."
            )
        return Mark(self._proof.key_id, self._proof.introducing)
