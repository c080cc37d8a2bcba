"""Names that tests of keyed requests at a broker share."""

from __future__ import annotations

from app.core.errors import ErrorCode
from app.security.acls import Operation, ResourceType

TRY, OTHER_TRY = b"1" * 16, b"2" * 16
DIGEST = b"d" * 32
AGAIN = frozenset(
    {
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
    }
)
WRITE, READ, TOPICS = Operation.WRITE, Operation.READ, ResourceType.TOPIC
