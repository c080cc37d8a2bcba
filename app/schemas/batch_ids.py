"""The ids of schemas that the records of a produced batch name, and payloads against their schemas. Pure; takes long: use the pool.

Tests: ``tests/schemas/test_batch_ids.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from heapq import merge
from itertools import islice
from typing import Final, NamedTuple

from app.configs import SchemaValidation, TopicConfig
from app.core.errors import CorruptionError, ErrorCode, LimitExceeded, ProtocolError, RecordsRejected, clause
from app.records.batch import parse_header
from app.records.record import raw_records, walk_records
from app.records.validation import RECORD_ERRORS_MAX
from app.records.varint import decode_varint
from app.registry.parsing.schemas import ParsedSchema
from app.registry.payloads.faults import PayloadInvalid, PayloadUnchecked
from app.registry.payloads.prefix import SchemaRef, Side, read_prefix
from app.registry.payloads.reading import Work, check_payload
from app.registry.refusals import TooComplex

USES_MAX: Final = 1_000
"""Schemas that one batch may use. A batch of a serializer has one for keys and one for each type of values."""
CHECKED_USES_MAX: Final = 50
"""As ``USES_MAX``, where payloads are checked: the models of all of them are in memory together."""

NUMBERS_MAX: Final = 100_000
"""Numbers of records that are kept for the refusal of a batch."""


class SchemaUse(NamedTuple):
    """A schema that records of a batch name."""

    side: Side
    ref: SchemaRef


class _Part(NamedTuple):
    """One key or value."""

    number: int
    side: Side
    use: SchemaUse | None
    fault: str
    """Why it has no id."""
    payload_at: int
    payload_end: int
    indexes: bytes | None = None
    """The bytes that follow the id in a header."""


@dataclass
class BatchUses:
    """The schemas of a batch."""

    count: int = 0
    """Records."""
    records: dict[SchemaUse, list[int]] = field(default_factory=dict)
    """The first records that use a schema, by their numbers in the batch: at least one."""
    faults: list[tuple[int, str]] = field(default_factory=list)
    """Records without an id, with the reason."""

    def refusal(self, unknown: Mapping[SchemaUse, str]) -> RecordsRejected | None:
        """The refusal of the batch, if records have no id or an unknown one. ``unknown``: the reason for each such schema."""
        by_use = [[(number, why) for number in self.records[use]] for use, why in unknown.items()]
        return refusal_of(merge(self.faults, *by_use), self.count)


def refusal_of(faults: Iterable[tuple[int, str]], count: int) -> RecordsRejected | None:
    """The refusal of a batch of ``count`` records for the faults of some, in the order of their numbers; None if there are none
    (SV1)."""
    by_record: dict[int, str] = {}
    for number, why in islice(faults, 2 * RECORD_ERRORS_MAX):
        by_record.setdefault(number, why)
    if not by_record:
        return None
    named = tuple(by_record.items())[:RECORD_ERRORS_MAX]
    first, why = named[0]
    told = f"{len(named)} of the batch's {count} records are refused; record {first}: {clause(why)}."
    return RecordsRejected(ErrorCode.INVALID_RECORD, told, named)


def uses_of(batch: memoryview | bytes | bytearray, config: TopicConfig, max_bytes: int) -> BatchUses:
    """The schemas that the one prepared batch names whose bytes are ``batch`` (SV2).

    Raises: ProtocolError INVALID_RECORD for records that cannot be read, or name more than ``USES_MAX`` schemas, or
    ``CHECKED_USES_MAX`` with ``firn.schema.validation=full``; LimitExceeded if the batch decompresses to more than ``max_bytes``.
    """
    uses_max = CHECKED_USES_MAX if config.firn_schema_validation is SchemaValidation.FULL else USES_MAX
    uses = BatchUses(parse_header(batch).record_count)
    named = 0
    for part in _parts(_data(batch, max_bytes), batch, config):
        if part.use is None:
            if len(uses.faults) < RECORD_ERRORS_MAX:
                uses.faults.append((part.number, part.fault))
            continue
        numbers = uses.records.setdefault(part.use, [])
        if not numbers or (len(numbers) < RECORD_ERRORS_MAX and named < NUMBERS_MAX):
            numbers.append(part.number)
            named += 1
        if len(uses.records) > uses_max:
            raise ProtocolError(
                f"The records of the batch name more than {uses_max} schemas. Send smaller batches.",
                ErrorCode.INVALID_RECORD,
            )
    return uses


def check_payloads(
    batch: memoryview | bytes | bytearray,
    config: TopicConfig,
    schemas: Mapping[SchemaUse, ParsedSchema | None],
    max_bytes: int,
    broken: dict[SchemaUse, Exception],
) -> None:
    """Check that payloads are values of their schemas. ``schemas``: of every use in the batch; None for a text that cannot be read.

    Where a check breaks down, its record is refused, and its error is added to ``broken``.

    The steps of all payloads together are bounded by the decompressed size of the batch.

    Raises: RecordsRejected INVALID_RECORD; ProtocolError INVALID_RECORD for a batch whose checks take too many steps; as
    ``uses_of``.
    """
    faults: list[tuple[int, str]] = []
    data = _data(batch, max_bytes)
    work = Work(len(data))
    for part in _parts(data, batch, config):
        if part.use is None or len(faults) >= RECORD_ERRORS_MAX:
            continue
        schema = schemas[part.use]
        if schema is None:
            faults.append((part.number, f"The schema {part.use.ref} of the {part.side.value} cannot be read."))
            continue
        try:
            check_payload(schema, data[part.payload_at : part.payload_end], part.indexes, work)
        except TooComplex:
            raise ProtocolError(
                f"The records of the batch up to record {part.number} need more than {work.steps_max} steps to be checked by "
                f"their schemas. Simplify the schemas, or set firn.schema.validation=id.",
                ErrorCode.INVALID_RECORD,
            ) from None
        except PayloadUnchecked as error:
            if isinstance(error.__cause__, Exception):
                broken.setdefault(part.use, error.__cause__)
            faults.append(
                (part.number, f"The {part.side.value} cannot be checked by schema {part.use.ref}: {clause(error)}.")
            )
        except PayloadInvalid as error:
            faults.append(
                (part.number, f"The {part.side.value} is no value of schema {part.use.ref}: {clause(error)}.")
            )
    refusal = refusal_of(faults, parse_header(batch).record_count)
    if refusal is not None:
        raise refusal


def _data(batch: memoryview | bytes | bytearray, max_bytes: int) -> bytes:
    header = parse_header(batch)
    try:
        return raw_records(batch, header, max_bytes if header.codec else len(batch))
    except CorruptionError as error:
        raise ProtocolError(str(error), ErrorCode.INVALID_RECORD) from None


def _parts(data: bytes, batch: memoryview | bytes | bytearray, config: TopicConfig) -> Iterator[_Part]:
    """The keys and values of a batch that must have schemas. Raises: ProtocolError INVALID_RECORD."""
    header = parse_header(batch)
    keys, values = config.confluent_key_schema_validation, config.confluent_value_schema_validation
    deletes = config.compacted
    number = 0
    try:
        for _, _, key_at, key_end, value_at, value_end, end in walk_records(
            data, 0, len(data), header.record_count, header.last_offset_delta
        ):
            headers_at = max(value_at, value_end)
            has_headers = end - headers_at > 1
            if keys:
                named = _named(data, headers_at, Side.KEY) if has_headers else []
                yield _part(data, number, Side.KEY, key_at, key_end, named)
            if values and (value_end >= 0 or not deletes):
                named = _named(data, headers_at, Side.VALUE) if has_headers else []
                yield _part(data, number, Side.VALUE, value_at, value_end, named)
            number += 1
    except LimitExceeded:
        raise
    except (ValueError, IndexError) as error:
        why = "it ends early" if isinstance(error, IndexError) else str(error)
        raise ProtocolError(
            f"Record {number} of the batch cannot be read: {clause(why)}.", ErrorCode.INVALID_RECORD
        ) from None


def _part(data: bytes, number: int, side: Side, at: int, end: int, named: list[tuple[int, int]]) -> _Part:
    if end < 0:
        return _Part(number, side, None, f"The {side.value} is null, and so has no schema id.", at, at)
    if len(named) > 1:
        return _Part(number, side, None, f"The header {side.header} comes {len(named)} times.", at, end)
    if named:
        found = read_prefix(data, *named[0])
        if found is None:
            return _Part(number, side, None, f"The header {side.header} holds no schema id.", at, end)
        rest = data[named[0][0] + found.size_bytes : named[0][1]]
        return _Part(number, side, SchemaUse(side, found.ref), "", at, end, rest)
    found = read_prefix(data, at, end)
    if found is None:
        why = f"The {side.value} has no schema id, neither in the header {side.header} nor at its start."
        return _Part(number, side, None, why, at, end)
    return _Part(number, side, SchemaUse(side, found.ref), "", at + found.size_bytes, end)


_NAMES: Final = {side: side.header.encode() for side in Side}


def _named(data: bytes, position: int, side: Side) -> list[tuple[int, int]]:
    """Start and end of the value of each header with the side's name. The headers were found sound; a null value has no bytes."""
    wanted = _NAMES[side]
    found: list[tuple[int, int]] = []
    count, position = decode_varint(data, position)
    for _ in range(count):
        size, position = decode_varint(data, position)
        name_end = position + size
        is_wanted = size == len(wanted) and data.startswith(wanted, position)
        size, position = decode_varint(data, name_end)
        if is_wanted:
            found.append((position, position + max(size, 0)))
        position += max(size, 0)
    return found
