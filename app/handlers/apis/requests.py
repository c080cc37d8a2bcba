"""FirnRequests (key 20015): looks keys of HTTP requests up, and appends their results (ADR 0043).

The leader of the key's partition answers. The principal is the connection's, so a caller can neither see, block nor guess the keys
of another principal. A new key needs WRITE on each topic that it writes to. The fate of a record is for brokers: it needs
CLUSTER_ACTION. Tests: ``tests/broker/test_keyed_requests.py``.
"""

from __future__ import annotations

from typing import Final

from app.coordinator.partition import ProducerIdAndEpoch
from app.core.errors import ErrorCode, FirnError, ProtocolError, RequestRejected, copy_of, kafka_code
from app.core.units import PartitionIndex, ProducerEpoch, ProducerId, TopicPartition
from app.exactly_once.records import (
    TOPIC,
    RequestKey,
)
from app.exactly_once.shard import KeyTaken
from app.exactly_once.transactional_ids import may_use
from app.handlers.base.api import Api, ApiTable
from app.handlers.base.authorising import require
from app.handlers.base.request import Request
from app.handlers.base.views import RequestsView
from app.handlers.clients.admission import admit_record
from app.handlers.clients.keyed import addressed, key_of, look_up, require_writes, result_of
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
    return pack(addressed(context, request, response))


async def _answer(context: RequestsView, request: Request, asked: RequestsRequest) -> RequestsResponse:
    """Raises: FirnError."""
    if asked.step == "fate":
        return await _fate(context, request, asked)
    if context.image.level < REQUESTS_LEVEL:
        raise RequestRejected(
            ErrorCode.UNSUPPORTED_VERSION,
            upgrade_needed("Requests with an Idempotency-Key need", REQUESTS_LEVEL, context.image.level),
        )
    key = key_of(request, asked.key, asked.try_id)
    match asked.step:
        case "look":
            if not asked.partitions:
                raise ProtocolError("A look names no partition.")
            return await look_up(context, request, key, asked.try_id, asked.partitions, asked.size_bytes)
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


async def _append(context: RequestsView, request: Request, asked: RequestsRequest, key: RequestKey) -> None:
    """Append a result, and wait until it is stored. Raises: FirnError."""
    if context.authorizer is not None and not may_use(key.principal, asked.transactional_id):
        raise RequestRejected(
            ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
            f"{key.principal} is not allowed to use the transactional id '{asked.transactional_id[:64]}' for keyed requests.",
        )
    result = result_of(key, asked.try_id, asked.result)
    await require_writes(context, request, {part.topic for part in result.parts})
    if context.refuses_transactions and context.refusal is not None:
        raise copy_of(context.refusal)
    others = await context.requests.others_of(key, asked.try_id)
    identity = ProducerIdentity(ProducerId(asked.producer_id), ProducerEpoch(asked.producer_epoch))
    target = TopicPartition(TOPIC, PartitionIndex(key.partition))
    context.requests.check_producer(key, asked.try_id, identity.producer_id)
    await admit_record(context, asked.transactional_id, identity, target, adds=True)
    # No await between the coordinator's yes and the append.
    await context.requests.accept(key, result, ProducerIdAndEpoch(*identity), others)


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
