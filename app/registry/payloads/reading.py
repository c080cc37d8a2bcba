"""Reads a payload by its schema, of any type. Tests: ``tests/registry/test_payloads.py``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any, Final

from app.core.limits import KIB
from app.registry.parsing.limits import StepBudget
from app.registry.parsing.schemas import ParsedSchema, SchemaType
from app.registry.payloads import avro, json_schema
from app.registry.payloads.faults import PayloadInvalid, PayloadUnchecked
from app.registry.refusals import TooComplex

STEPS_LEAST: Final = 10_000
STEPS_A_BYTE: Final = 8
"""Steps that a payload, or all payloads of a batch together, may need: parts of the schema for each part of the value."""

PAYLOAD_BYTES_MAX: Final = 256 * KIB
"""Of a payload in JSON or Protobuf that a broker checks. One call decodes it, and other threads wait for up to 50 ms. Avro is read
in many calls."""


class Work:
    """The common budget of the payloads of one batch, so that many small payloads get no more steps than one large one. It keeps
    the types that were looked up."""

    __slots__ = ("_types", "steps", "steps_max")

    def __init__(self, size_bytes: int) -> None:
        """``size_bytes``: of the batch, decompressed."""
        self.steps_max = STEPS_LEAST + STEPS_A_BYTE * size_bytes
        self.steps = StepBudget(self.steps_max)
        self._types: Any = None

    def check_protobuf(self, schema: ParsedSchema, data: bytes, indexes: bytes | None) -> None:
        """Raises: PayloadInvalid, TooComplex."""
        protobuf = _protobuf()
        if self._types is None:
            self._types = protobuf.MessageTypes()
        protobuf.check_payload(schema.model, data, 0, indexes, self._types, self.steps)


def read_payload(schema: ParsedSchema, data: bytes, start: int, indexes: bytes | None = None) -> Any:
    """The value of a payload, as JSON can say it.

    Args:
        start: where the payload begins, after the schema's id.
        indexes: the bytes that follow the id in a header, which name the message of a Protobuf file; None if the id is in the
            payload.

    Raises: PayloadInvalid.
    """
    try:
        with _total():
            return _read(schema, data, start, indexes, StepBudget(STEPS_LEAST + STEPS_A_BYTE * (len(data) - start)))
    except TooComplex:
        raise PayloadInvalid("the payload needs too many steps to be checked") from None


def check_payload(schema: ParsedSchema, data: bytes, indexes: bytes | None, work: Work) -> None:
    """Check a payload of a batch, as ``read_payload``, from the start of ``data`` on. ``work``: of the batch.

    Raises: PayloadInvalid; TooComplex if no steps are left for the batch.
    """
    work.steps.spend()
    if schema.kind is not SchemaType.AVRO and len(data) > PAYLOAD_BYTES_MAX:
        raise PayloadUnchecked(
            f"it has {len(data)} bytes, and those with more than {PAYLOAD_BYTES_MAX} are not checked"
        )
    with _total():
        if schema.kind is SchemaType.PROTOBUF:
            work.check_protobuf(schema, data, indexes)
        else:
            _read(schema, data, 0, indexes, work.steps)


def _read(schema: ParsedSchema, data: bytes, start: int, indexes: bytes | None, steps: StepBudget) -> Any:
    """Raises: PayloadInvalid, TooComplex."""
    match schema.kind:
        case SchemaType.AVRO:
            return avro.read_payload(schema.model, data, start, steps)
        case SchemaType.JSON:
            return json_schema.read_payload(schema.model, data, start, steps)
        case SchemaType.PROTOBUF:
            return _protobuf().read_payload(schema.model, data, start, indexes, steps)


@contextmanager
def _total() -> Iterator[None]:
    """Stored schemas are of strangers: an error that no check foresees is an error of one payload, and never of a connection.

    Raises: PayloadUnchecked for such an error.
    """
    try:
        yield
    except (PayloadInvalid, TooComplex, MemoryError):
        raise
    except Exception as error:
        raise PayloadUnchecked(f"the check failed with {type(error).__name__}") from error


def _protobuf() -> ModuleType:
    """The module that needs the package `protobuf`, which a schema of this type has loaded already."""
    from app.registry.payloads import protobuf

    return protobuf
