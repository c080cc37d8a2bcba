"""FirnSchemas (key 20014): conditional appends to `_schemas`, and reads of it, on the broker that leads the topic (ADR 0041).

The broker decides the rights from the connection's principal. A subject belongs to the topic that it names: WRITE on the topic
registers a schema, DELETE deletes one, DESCRIBE reads. All other subjects, configs and modes need ALTER on the cluster. Reading
them needs DESCRIBE on the cluster, READ on `_schemas`, or CLUSTER_ACTION, which brokers have (SV8). Tests:
``tests/broker/test_schema_rights.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from app.core.errors import ErrorCode, FirnError, ProtocolError, RequestRejected, copy_of, kafka_code
from app.core.turns import Portion
from app.handlers.base.api import Api, ApiTable
from app.handlers.base.authorising import judge, may, refuse, require
from app.handlers.base.request import Request
from app.handlers.base.views import SchemasView
from app.metadata.image.records import REGISTRY_LEVEL, upgrade_needed
from app.schemas.coordinator import OutcomeUnknown, Refused, leader_of
from app.schemas.records import OPERATOR, Meaning, read_one, subject_of, topic_of
from app.schemas.strength import TOPIC
from app.security.acls import Operation, ResourceType
from app.wire.apikeys import ApiKey
from app.wire.private import (
    SCHEMA_READ_BYTES,
    SCHEMA_REQUEST_BYTES_MAX,
    SchemasRequest,
    SchemasResponse,
    pack,
    unpack,
)

OFFSET_MAX: Final = 2**63 - 1


async def handle_schemas(context: SchemasView, request: Request, message: bytes) -> bytes:
    """One append or read. Raises: ProtocolError."""
    if len(message) > SCHEMA_REQUEST_BYTES_MAX:
        sentence = (
            f"A request has {len(message)} bytes, and {SCHEMA_REQUEST_BYTES_MAX} are allowed. Send fewer records."
        )
        return pack(SchemasResponse(int(ErrorCode.MESSAGE_TOO_LARGE), sentence))
    asked = unpack(SchemasRequest, message)
    if not 0 <= asked.offset <= OFFSET_MAX:
        raise ProtocolError(f"{asked.offset} is no offset.")
    try:
        match asked.step:
            case "append":
                response = await _append(context, request, asked)
            case "read":
                response = await _read(context, request, asked)
            case step:
                raise ProtocolError(f"There is no step {step[:64]!r} of FirnSchemas.")
    except ProtocolError:
        raise
    except FirnError as error:
        code = kafka_code(error)
        leader = leader_of(error, context.image) if isinstance(error, RequestRejected) else -1
        may_count = isinstance(error, OutcomeUnknown)
        response = SchemasResponse(int(code), str(error), leader, may_count=may_count)
    return pack(response)


# --- appends ------------------------------------------------------------------------------------------------------------


async def _append(context: SchemasView, request: Request, asked: SchemasRequest) -> SchemasResponse:
    """Raises: FirnError."""
    if not asked.records:
        raise RequestRejected(ErrorCode.INVALID_RECORD, "The append has no records. Send at least one.")
    portion = Portion()
    meanings: list[Meaning] = []
    for place, (key, value) in enumerate(asked.records):
        meanings.append(read_one(asked.subject, place, key, value))
        await portion.rest_if_spent()
    is_operator = _check_rights(context, request, asked.subject, meanings)
    if context.image.level < REGISTRY_LEVEL:
        raise RequestRejected(
            ErrorCode.UNSUPPORTED_VERSION,
            upgrade_needed("The schema registry needs", REGISTRY_LEVEL, context.image.level),
        )
    if context.refusal is not None:
        raise copy_of(context.refusal)
    await context.schemas.ensure_topic()
    caller = (request.caller.principal, asked.subject)
    result = await context.schemas.append(
        caller, asked.offset, asked.records, meanings, history=asked.history, is_operator=is_operator
    )
    if isinstance(result, Refused):
        return SchemasResponse(wait_ms=result.wait_ms)
    return SchemasResponse(end=int(result.end), moved=result.moved)


def _check_rights(context: SchemasView, request: Request, subject: str | None, meanings: list[Meaning]) -> bool:
    """Check that the caller may write these records (SR6). Returns: whether it may alter the cluster. Raises: RequestRejected."""
    if may(context, request.caller, Operation.ALTER, ResourceType.CLUSTER):
        return True
    topic = None if subject is None else topic_of(subject)
    if topic is None or any(one.kind in OPERATOR for one in meanings):
        raise refuse(request, Operation.ALTER, ResourceType.CLUSTER)
    if any(not one.deletes for one in meanings):
        require(context, request, Operation.WRITE, ResourceType.TOPIC, topic)
    if any(one.deletes for one in meanings):
        require(context, request, Operation.DELETE, ResourceType.TOPIC, topic)
    return False


# --- reads --------------------------------------------------------------------------------------------------------------


async def _read(context: SchemasView, request: Request, asked: SchemasRequest) -> SchemasResponse:
    """Raises: FirnError."""
    if context.image.topic(TOPIC) is None:
        return SchemasResponse(end=0)
    found, end, history = await context.schemas.read(asked.offset, SCHEMA_READ_BYTES, _shown_to(context, request))
    return SchemasResponse(end=end, records=[(*one,) for one in found], history=history)


def _shown_to(context: SchemasView, request: Request) -> Callable[[bytes], bool]:
    """Whether the caller may see the record with a key (SR7). Records that name no subject are shown to all."""
    caller = request.caller
    if (
        context.authorizer is None
        or may(context, caller, Operation.DESCRIBE, ResourceType.CLUSTER)
        or may(context, caller, Operation.READ, ResourceType.TOPIC, TOPIC)
        or may(context, caller, Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    ):
        return lambda _: True
    describes = judge(context, caller, Operation.DESCRIBE, ResourceType.TOPIC)
    known: dict[str, bool] = {}

    def shown(key: bytes) -> bool:
        try:
            subject = subject_of(key)
        except ValueError:
            return False
        if subject is None:
            return True
        found = known.get(subject)
        if found is None:
            topic = topic_of(subject)
            found = known[subject] = topic is not None and describes(topic)
        return found

    return shown


def _refuse(request: Request, message: bytes, code: ErrorCode, sentence: str) -> bytes | None:
    """A message that cannot be read closes the connection, as for all of Firn's own APIs."""
    del request, message
    return None if code is ErrorCode.INVALID_REQUEST else pack(SchemasResponse(int(code), sentence))


APIS: Final[ApiTable] = {ApiKey.FIRN_SCHEMAS: Api(handle_schemas, _refuse)}
