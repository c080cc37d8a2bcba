"""Errors as the REST proxy answers them: ``{"error_code", "message"}``. The code is the HTTP status, or begins with it.

Tests: ``tests/http/test_schemas.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import msgspec

from app.core.errors import (
    RETRIABLE,
    BrokerUnavailable,
    ConfigError,
    ErrorCode,
    FirnError,
    LimitExceeded,
    ProtocolError,
    RequestRejected,
)

RETRY_LATER: Final = frozenset({429, 503})
"""Statuses of requests that a later try may serve."""
RETRY_AFTER_S: Final = "1"
"""Seconds, as the header says them. A broker that has a quota also delays its responses, so callers slow down by themselves."""
NO_STORE: Final = {"cache-control": "no-store"}
"""Headers of every response that may be another one the next time, or for another caller."""


class Error(msgspec.Struct):
    """The body of the answer to a request that failed."""

    error_code: int
    message: str


class RestAnswer(NamedTuple):
    """The answer to a request that failed."""

    status: int
    error_code: int
    message: str
    comes_again: bool = False
    """Whether a later try may be served, also where the status alone does not say so."""
    etag: str | None = None
    """Of a condition that does not hold: the ETag with which it would."""

    def body(self) -> bytes:
        return msgspec.json.encode(Error(self.error_code, self.message))

    def headers(self) -> dict[str, str]:
        """The headers of the response, besides its type and length."""
        headers = dict(NO_STORE)
        if self.comes_again or self.status in RETRY_LATER:
            headers["retry-after"] = RETRY_AFTER_S
        if self.etag is not None:
            headers["etag"] = self.etag
        return headers


REFUSED: Final = RestAnswer(401, 40101, "Authentication failed.")
"""The answer to every wrong credential. It does not say which part is wrong."""
NEEDED: Final = RestAnswer(401, 40101, "This server asks for a user and a password, or for a token.")


class RestError(Exception):
    """Raised by a route to answer with an error."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        error_code: int | None = None,
        comes_again: bool = False,
        etag: str | None = None,
    ) -> None:
        super().__init__(message)
        self.answer = RestAnswer(status, status if error_code is None else error_code, message, comes_again, etag)


class ProcessEnded(Exception):
    """Another HTTP process, which responded to the request, has ended in the middle of its response."""


BAD_REQUEST: Final = (400, 40002)
UNKNOWN_TOPIC_OR_PARTITION: Final = (404, 40403)
KAFKA_ERROR: Final = (500, 50002)
KAFKA_RETRIABLE: Final = (500, 50003)
BROKER_NOT_AVAILABLE: Final = (503, 50302)

REST_CODE: Final[Mapping[ErrorCode, tuple[int, int]]] = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID: UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.RESOURCE_NOT_FOUND: (404, 404),
    ErrorCode.GROUP_ID_NOT_FOUND: (404, 404),
    ErrorCode.COORDINATOR_NOT_AVAILABLE: BROKER_NOT_AVAILABLE,
    ErrorCode.COORDINATOR_LOAD_IN_PROGRESS: BROKER_NOT_AVAILABLE,
    ErrorCode.BROKER_NOT_AVAILABLE: BROKER_NOT_AVAILABLE,
    ErrorCode.NETWORK_EXCEPTION: BROKER_NOT_AVAILABLE,
    ErrorCode.SASL_AUTHENTICATION_FAILED: (401, 40101),
    ErrorCode.TOPIC_AUTHORIZATION_FAILED: (403, 40301),
    ErrorCode.GROUP_AUTHORIZATION_FAILED: (403, 40301),
    ErrorCode.CLUSTER_AUTHORIZATION_FAILED: (403, 40301),
    ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: (403, 40301),
    ErrorCode.MESSAGE_TOO_LARGE: (413, 413),
    ErrorCode.RECORD_LIST_TOO_LARGE: (413, 413),
    ErrorCode.THROTTLING_QUOTA_EXCEEDED: (429, 42901),
    **dict.fromkeys(
        (
            ErrorCode.INVALID_TOPIC_EXCEPTION,
            ErrorCode.TOPIC_ALREADY_EXISTS,
            ErrorCode.INVALID_PARTITIONS,
            ErrorCode.INVALID_REPLICATION_FACTOR,
            ErrorCode.INVALID_REPLICA_ASSIGNMENT,
            ErrorCode.INVALID_CONFIG,
            ErrorCode.INVALID_REQUEST,
            ErrorCode.INVALID_RECORD,
            ErrorCode.INVALID_TIMESTAMP,
            ErrorCode.POLICY_VIOLATION,
            ErrorCode.UNSUPPORTED_VERSION,
            ErrorCode.SECURITY_DISABLED,
            ErrorCode.INVALID_GROUP_ID,
            ErrorCode.NON_EMPTY_GROUP,
            ErrorCode.OFFSET_OUT_OF_RANGE,
        ),
        BAD_REQUEST,
    ),
}
"""HTTP status and error code of Kafka's codes, as the REST proxy maps them; others are 500 with 50003 (a retry may help) or
50002."""


def answer_of(error: FirnError | RestError) -> RestAnswer:
    """The answer for an error."""
    match error:
        case RestError():
            return error.answer
        case RequestRejected():
            fallback = KAFKA_RETRIABLE if error.code in RETRIABLE else KAFKA_ERROR
            status, code = REST_CODE.get(error.code, fallback)
        case BrokerUnavailable():
            status, code = BROKER_NOT_AVAILABLE
        case ProtocolError():
            status, code = 400, 400
        case LimitExceeded():
            status, code = 413, 413
        case ConfigError():
            status, code = BAD_REQUEST
        case _:
            status, code = KAFKA_ERROR
    return RestAnswer(status, code, str(error))
