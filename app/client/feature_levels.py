"""The level of the cluster, as a client asks for it before it sends a request that older brokers do not know.

Tests: ``tests/broker/test_conditional_appends.py``, ``tests/http/keyed/test_keyed_requests.py``.
"""

from __future__ import annotations

from app.client.connection import KafkaConnection
from app.core.errors import ErrorCode, RequestRejected
from app.metadata.image.records import LEVEL_FEATURE, upgrade_needed


async def require_level(connection: KafkaConnection, needed: int, what: str) -> None:
    """Check the level of the cluster. ``what``: the beginning of the error's sentence, such as "Conditional appends need".

    Raises: RequestRejected UNSUPPORTED_VERSION if the level is below ``needed``; BrokerUnavailable.
    """
    if connection.features.get(LEVEL_FEATURE, 0) < needed:
        await connection.learn_features()
    level = connection.features.get(LEVEL_FEATURE, 0)
    if level < needed:
        raise RequestRejected(ErrorCode.UNSUPPORTED_VERSION, upgrade_needed(what, needed, level))
