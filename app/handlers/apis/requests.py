"""FirnRequests (key 20015): looks keys of HTTP requests up, and appends their results (ADR 0043).

The leader of the key's partition answers. The principal is the connection's, so a caller can neither see, block nor guess the keys
of another principal. A new key needs WRITE on each topic that it writes to. The fate of a record is for brokers: it needs
CLUSTER_ACTION. Tests: ``tests/broker/test_keyed_requests.py``.
"""

from __future__ import annotations

from typing import Final

from app.coordinator.partition import ProducerIdAndEpoch
from app.core.errors import ErrorCode, FirnError, ProtocolError, RequestRejected, copy_of, kafka_code
from app.core.turns import Portion
from app.core.units import PartitionIndex, ProducerEpoch, ProducerId, TopicPartition
from app.exactly_once.records import (
    KEY_BYTES_MAX,
    PRINCIPAL_BYTES_MAX,
    TOPIC,
    TRY_ID_BYTES,
    RequestKey,
    Result,
    Tick,
    decode,
    encode_key,
)
from app.exactly_once.shard import KeyTaken
from app.exactly_once.transactional_ids import may_use, prefix_of
from app.handlers.base.api import Api, ApiTable
from app.handlers.base.authorising import require
from app.handlers.base.request import Request
from app.handlers.base.views import RequestsView
from app.handlers.clients.admission import admit_record
from app.metadata.image.records import REQUESTS_LEVEL, upgrade_needed
from app.security.acls import Operation, ResourceType
from app.transactions.state import ProducerIdentity
from app.wire.apikeys import ApiKey
from app.wire.private import REQUEST_BYTES_MAX, RequestsRequest, RequestsResponse, pack, unpack


async def handle_requests(context: RequestsView, request: Request, message: bytes) -> bytes:
    """One step of a keyed request. Raises: ProtocolError."""
    if len(message) > REQUEST_BYTES_MAX:
        sentence = f"A request has {len(message)} bytes, and {REQUEST_BYTES_MAX} are allowed. Send fewer records."
        return pack(RequestsResponse(int(ErrorCode.MESSAGE_TOO_LARGE), sentence))
    asked = unpack(RequestsRequest, message)
    try:
        response = await _answer(context, request, asked)
    except ProtocolError:
        raise
    except FirnError as error:
        response = RequestsResponse(int(kafka_code(error)), str(error))
    principal = request.caller.principal
    return pack(_with(response, principal, prefix_of(principal), context.requests.leaders()))


def _with(response: RequestsResponse, principal: str, prefix: str, leaders: list[int]) -> RequestsResponse:
    return RequestsResponse(
        response.error_code,
        response.error,
        principal,
        prefix,
        leaders,
        response.found,
        response.result,
        response.try_id,
        response.timeout_ms,
    )


async def _answer(context: RequestsView, request: Request, asked: RequestsRequest) -> RequestsResponse:
    """Raises: FirnError."""
    if asked.step == "fate":
        return await _fate(context, request, asked)
    if context.image.level < REQUESTS_LEVEL:
        raise RequestRejected(
            ErrorCode.UNSUPPORTED_VERSION,
            upgrade_needed("Requests with an Idempotency-Key need", REQUESTS_LEVEL, context.image.level),
        )
    key = RequestKey(request.caller.principal, asked.key)
    if not 1 <= len(asked.key) <= KEY_BYTES_MAX:
        raise ProtocolError(f"A key has {len(asked.key)} bytes.")
    if len(asked.try_id) != TRY_ID_BYTES:
        raise ProtocolError(f"The id of a try has {len(asked.try_id)} bytes.")
    if len(key.principal.encode()) > PRINCIPAL_BYTES_MAX:
        raise RequestRejected(
            ErrorCode.INVALID_REQUEST,
            f"The principal has more than {PRINCIPAL_BYTES_MAX} bytes. Its requests cannot have an Idempotency-Key.",
        )
    match asked.step:
        case "look":
            return await _look(context, request, asked, key)
        case "settle":
            found = await context.requests.look(key, asked.try_id, None)
            return RequestsResponse(found=found.found, result=found.value, try_id=found.try_id)
        case "append":
            try:
                await _append(context, request, asked, key)
            except KeyTaken as error:
                return RequestsResponse(error=str(error), found="taken")
            return RequestsResponse(found="accepted")
        case "release":
            await context.requests.release(key, asked.try_id)
            return RequestsResponse()
        case step:
            raise ProtocolError(f"There is no step {step[:64]!r} of FirnRequests.")


async def _look(context: RequestsView, request: Request, asked: RequestsRequest, key: RequestKey) -> RequestsResponse:
    """Look a key up, and reserve a new one once it is known that its request can be served. Raises: FirnError."""
    if not asked.partitions:
        raise ProtocolError("A look names no partition.")
    requests = context.requests
    if context.image.topic(TOPIC) is None:
        await _require_writes(context, request, {topic for topic, _ in asked.partitions})
    await requests.ensure_topic()
    found = await requests.look(key, asked.try_id, None)
    if found.found != "unknown":
        return RequestsResponse(found=found.found, result=found.value, try_id=found.try_id)
    await _require_writes(context, request, {topic for topic, _ in asked.partitions})
    if context.refusal is not None:
        raise copy_of(context.refusal)
    timeout_ms = await requests.check_parts(key, asked.partitions)
    found = await requests.look(key, asked.try_id, max(0, asked.size_bytes))
    return RequestsResponse(found=found.found, result=found.value, try_id=found.try_id, timeout_ms=timeout_ms)


async def _require_writes(context: RequestsView, request: Request, topics: set[str]) -> None:
    """Raises: RequestRejected TOPIC_AUTHORIZATION_FAILED."""
    portion = Portion()
    for topic in sorted(topics):
        require(context, request, Operation.WRITE, ResourceType.TOPIC, topic)
        await portion.rest_if_spent()


async def _append(context: RequestsView, request: Request, asked: RequestsRequest, key: RequestKey) -> None:
    """Append a result, and wait until it is stored. Raises: FirnError."""
    if context.authorizer is not None and not may_use(key.principal, asked.transactional_id):
        raise RequestRejected(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            f"{key.principal} is not allowed to use the transactional id '{asked.transactional_id[:64]}' for keyed requests.",
        )
    result = _result_of(asked, key)
    await _require_writes(context, request, {part.topic for part in result.parts})
    if context.refuses_transactions and context.refusal is not None:
        raise copy_of(context.refusal)
    others = await context.requests.others_of(key, asked.try_id)
    identity = ProducerIdentity(ProducerId(asked.producer_id), ProducerEpoch(asked.producer_epoch))
    target = TopicPartition(TOPIC, PartitionIndex(key.partition))
    await admit_record(context, asked.transactional_id, identity, target, adds=True)
    # No await between the coordinator's yes and the append.
    await context.requests.accept(key, result, ProducerIdAndEpoch(*identity), others)


def _result_of(asked: RequestsRequest, key: RequestKey) -> Result:
    """Raises: ProtocolError, CorruptionError for bytes that are no result of this try."""
    found = decode(encode_key(key), asked.result)
    if found is None or isinstance(found, Tick) or found[1].try_id != asked.try_id:
        raise ProtocolError("The result is of another try.")
    return found[1]


async def _fate(context: RequestsView, request: Request, asked: RequestsRequest) -> RequestsResponse:
    """Raises: FirnError."""
    require(context, request, Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
    if len(asked.partitions) != 1:
        raise ProtocolError(f"A fate is of one record, and the request names {len(asked.partitions)} partitions.")
    ((topic, partition),) = asked.partitions
    target = TopicPartition(topic, PartitionIndex(partition))
    producer = ProducerIdAndEpoch(ProducerId(asked.producer_id), ProducerEpoch(asked.producer_epoch))
    return RequestsResponse(found=await context.requests.fate(target, asked.offset, producer))


def _refuse(request: Request, message: bytes, code: ErrorCode, sentence: str) -> bytes | None:
    """A message that cannot be read closes the connection, as for all of Firn's own APIs."""
    del request, message
    return None if code is ErrorCode.INVALID_REQUEST else pack(RequestsResponse(int(code), sentence))


APIS: Final[ApiTable] = {ApiKey.FIRN_REQUESTS: Api(handle_requests, _refuse)}
