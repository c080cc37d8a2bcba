"""GetTelemetrySubscriptions (key 71) and PushTelemetry (72): metrics of clients (KIP-714).

Every client may ask and push, as in Apache Kafka. The subscriptions decide which metrics are kept (``app/telemetry/``). Metrics are
decompressed and read one push at a time, so many clients need the memory of one. Clients that would wait behind too many are told
to push later.

Differences from Apache Kafka: clients are asked for cumulative sums, because Prometheus wants these; and the metrics are kept here,
where Kafka hands them to a plugin.
"""

from __future__ import annotations

from typing import Final
from uuid import UUID

from app.configs.client_metrics import Client
from app.core.errors import CorruptionError, ErrorCode, LimitExceeded, ProtocolError, RequestRejected
from app.core.loop_time import loop_time_s
from app.core.turns import run
from app.handlers.base.api import Api, ApiTable
from app.handlers.base.request import Request
from app.handlers.base.views import TelemetryView
from app.records.compression import decompress
from app.telemetry.clients import CODECS, RESERVED_IDS, ClientState, Push
from app.wire.apikeys import ApiKey
from app.wire.apis.get_telemetry_subscriptions import (
    GetTelemetrySubscriptionsRequest,
    GetTelemetrySubscriptionsResponse,
)
from app.wire.apis.push_telemetry import PushTelemetryRequest, PushTelemetryResponse

DECOMPRESSED_FACTOR: Final = 4
"""How many times longer than ``telemetry.max.bytes`` metrics may be when they are decompressed."""
WAITING_MAX: Final = 32
"""Pushes that wait to be read. The requests of all of them stay in memory."""
ID_BYTES: Final = 16


async def get_subscriptions(
    context: TelemetryView, request: Request, message: GetTelemetrySubscriptionsRequest
) -> GetTelemetrySubscriptionsResponse:
    """Tell a client which metrics to push, and how often. It gets an id if it has none.

    Raises: RequestRejected THROTTLING_QUOTA_EXCEEDED if it asks again too soon.
    """
    clients = context.telemetry.clients
    await run(clients.following(context.image.client_metrics))
    instance_id = message.client_instance_id
    while instance_id in RESERVED_IDS:
        instance_id = UUID(bytes=context.random_bytes(ID_BYTES), version=4)
    asked = clients.subscribe(_client(request, instance_id), instance_id, loop_time_s())
    return GetTelemetrySubscriptionsResponse(
        client_instance_id=instance_id,
        subscription_id=asked.subscription_id,
        accepted_compression_types=list(CODECS),
        push_interval_ms=asked.wanted.interval_ms,
        telemetry_max_bytes=clients.bytes_max,
        delta_temporality=False,
        requested_metrics=list(asked.wanted.metrics),
    )


async def push(context: TelemetryView, request: Request, message: PushTelemetryRequest) -> PushTelemetryResponse:
    """Keep the metrics of a client. Raises: RequestRejected, as ``PushingClients.admit``, and INVALID_RECORD for bad metrics."""
    telemetry = context.telemetry
    clients = telemetry.clients
    await run(clients.following(context.image.client_metrics))
    instance_id = message.client_instance_id
    about = Push(message.subscription_id, message.compression_type, len(message.metrics), message.terminating)
    state = clients.admit(_client(request, instance_id), instance_id, about, loop_time_s())
    try:
        if telemetry.waiting >= WAITING_MAX:
            raise RequestRejected(
                ErrorCode.THROTTLING_QUOTA_EXCEEDED, f"{WAITING_MAX} clients wait already. Push at the next interval."
            )
        await _take(context, state, message)
    except RequestRejected as error:
        clients.failed(state, error.code)
        raise
    return PushTelemetryResponse()


async def _take(context: TelemetryView, state: ClientState, message: PushTelemetryRequest) -> None:
    """Raises: RequestRejected INVALID_RECORD, TELEMETRY_TOO_LARGE."""
    telemetry = context.telemetry
    telemetry.waiting += 1
    try:
        async with telemetry.reading:
            metrics = bytes(message.metrics)
            most = DECOMPRESSED_FACTOR * telemetry.clients.bytes_max
            if message.compression_type:
                metrics = await context.pool.run(lambda: decompress(message.compression_type, metrics, most))
            await run(telemetry.clients.taking(state, metrics))
    except LimitExceeded as error:
        raise RequestRejected(ErrorCode.TELEMETRY_TOO_LARGE, str(error)) from error
    except (CorruptionError, ProtocolError) as error:
        raise RequestRejected(ErrorCode.INVALID_RECORD, str(error)) from error
    finally:
        telemetry.waiting -= 1


def _client(request: Request, instance_id: UUID) -> Client:
    """The client of a request, as subscriptions see it."""
    caller = request.caller
    name, version = request.software
    return Client(str(instance_id), request.client_id or "", name, version, caller.host, str(caller.port))


def refuse_get_subscriptions(
    request: Request, message: GetTelemetrySubscriptionsRequest, code: ErrorCode, sentence: str
) -> GetTelemetrySubscriptionsResponse:
    del request, message, sentence
    return GetTelemetrySubscriptionsResponse(error_code=code)


def refuse_push(
    request: Request, message: PushTelemetryRequest, code: ErrorCode, sentence: str
) -> PushTelemetryResponse:
    del request, message, sentence
    return PushTelemetryResponse(error_code=code)


APIS: Final[ApiTable] = {
    ApiKey.GET_TELEMETRY_SUBSCRIPTIONS: Api(get_subscriptions, refuse_get_subscriptions),
    ApiKey.PUSH_TELEMETRY: Api(push, refuse_push),
}
