"""Passes clients' requests on to the controller (ADR 0023, F), and answers requests that other brokers pass on.

A request that changes the cluster may come to any broker. If that broker is not the controller, it puts the request into an
Envelope (API 58) with its principal. It gives the client the controller's answer when it has applied the entry that the answer
names.

Tests: ``tests/broker/test_passing_on.py``.
"""

from __future__ import annotations

from asyncio import CancelledError
from inspect import isawaitable
from typing import Any, Final

from app.core.errors import ErrorCode, FirnError, ProtocolError, RequestRejected, kafka_code
from app.core.log_events import Event
from app.handlers.base.api import Api, ApiTable
from app.handlers.base.context import Context
from app.handlers.base.request import Request
from app.handlers.policy.callers import ANONYMOUS, Caller
from app.metadata.peers.control import ENVELOPE_SEQUENCE
from app.security.acls import Operation, ResourceType
from app.security.noting import note
from app.wire.apikeys import ApiKey
from app.wire.apis.envelope import EnvelopeRequest, EnvelopeResponse
from app.wire.codec import decode_request
from app.wire.framing import response_frame
from app.wire.header import parse_request_header
from app.wire.principal import decode_principal, encode_principal
from app.wire.versions import is_served

PASSED_ON: Final[frozenset[int]] = frozenset(
    {
        ApiKey.CREATE_TOPICS,
        ApiKey.DELETE_TOPICS,
        ApiKey.CREATE_PARTITIONS,
        ApiKey.ALTER_CONFIGS,
        ApiKey.INCREMENTAL_ALTER_CONFIGS,
        ApiKey.ELECT_LEADERS,
        ApiKey.ALTER_PARTITION_REASSIGNMENTS,
        ApiKey.UPDATE_FEATURES,
        ApiKey.CREATE_ACLS,
        ApiKey.DELETE_ACLS,
        ApiKey.ALTER_USER_SCRAM_CREDENTIALS,
        ApiKey.CREATE_DELEGATION_TOKEN,
        ApiKey.RENEW_DELEGATION_TOKEN,
        ApiKey.EXPIRE_DELEGATION_TOKEN,
        ApiKey.UNREGISTER_BROKER,
        ApiKey.DESCRIBE_QUORUM,
        ApiKey.ALTER_CLIENT_QUOTAS,
    }
)
"""APIs that only the controller answers."""

SIZE_BYTES: Final = 4


def principal_of(request: Request) -> bytes:
    """The principal that a request speaks for, as an Envelope carries it."""
    kind, _, name = request.caller.principal.partition(":")
    return encode_principal(kind, name, token_authenticated=request.caller.by_token)


def address_of(request: Request) -> bytes:
    """The address that a request comes from, as an Envelope of this program carries it."""
    return f"{request.caller.host}:{request.caller.port}".encode()


def may_speak_for(context: Context, caller: Caller, principal: str) -> bool:
    """Whether a caller on the listener between brokers may pass on a request of ``principal`` (ADR 0031, BB8).

    With an authorizer the table has checked CLUSTER_ACTION of the caller, and the rights of ``principal`` are checked later.
    Without one, a login is not enough: clients may share the listener.
    """
    if context.authorizer is not None or (caller.principal in context.brokers and not caller.by_token):
        return True
    return caller.principal == principal == ANONYMOUS


async def handle_envelope(context: Context, request: Request, message: EnvelopeRequest) -> EnvelopeResponse:
    """A request that another broker passes on. Raises: RequestRejected, ProtocolError."""
    if context.desk is None or not context.desk.serving:
        raise RequestRejected(ErrorCode.NOT_CONTROLLER, "This broker is not the controller.")
    if request.caller.listener != context.config.inter_broker_listener:
        note(request, Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
        raise RequestRejected(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            f"Brokers pass requests on over the listener {context.config.inter_broker_listener}.",
        )
    kind, name, by_token = decode_principal(message.request_principal or b"")
    principal = f"{kind}:{name}"
    if not may_speak_for(context, request.caller, principal):
        note(request, Operation.CLUSTER_ACTION, ResourceType.CLUSTER)
        context.client_line(
            Event.FORWARDING_REFUSED.line(
                f"refusing a request that {request.caller.principal} passes on for {principal}: without an authorizer, only "
                "principals in super.users pass requests on, and the user as whom this broker logs in to others"
            )
        )
        raise RequestRejected(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, f"This connection may not speak for {principal}.")
    # Rights and quotas are those of the client.
    host = message.client_host_address.decode(errors="replace").rpartition(":")[0]
    caller = Caller(context.rights.of(principal, host), request.caller.listener, host, by_token=by_token)
    frame = memoryview(message.request_data)
    header = parse_request_header(frame)
    if header.api_key not in PASSED_ON or not is_served(header.api_key, header.api_version):
        raise RequestRejected(ErrorCode.INVALID_REQUEST, f"API key {header.api_key} is not passed on.")
    inner = Request(
        header.api_key, header.api_version, header.correlation_id, header.client_id, caller, request.on_close
    )
    api = context.apis[header.api_key]
    asked = decode_request(header.api_key, header.api_version, frame[header.body_start :])
    answer: Any
    try:
        answer = api.handle(context, inner, asked)
        if isawaitable(answer):
            answer = await answer
    except CancelledError:
        if context.audit is not None:
            context.audit.cut_off(inner, asked)
        raise
    except FirnError as error:
        answer = api.refuse(inner, asked, kafka_code(error), str(error))
    if context.audit is not None:
        context.audit.answered(inner, asked, answer)
    if answer is None:
        raise ProtocolError(f"API key {header.api_key} cannot answer what was asked.")
    encoded = response_frame(header.api_key, header.api_version, header.correlation_id, answer)
    newest = context.cluster.log.next_sequence - 1
    return EnvelopeResponse(response_data=ENVELOPE_SEQUENCE.pack(newest) + encoded[SIZE_BYTES:])


def _refuse(request: Request, message: object, code: ErrorCode, why: str) -> EnvelopeResponse:
    return EnvelopeResponse(error_code=int(code))


APIS: Final[ApiTable] = {ApiKey.ENVELOPE: Api(handle_envelope, _refuse)}
