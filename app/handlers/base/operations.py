"""The operations that each type of resource has, as the bit field of ``authorized_operations`` in responses (KIP-430).

Without an authorizer a caller may do all of them. ``app/handlers/base/authorising.py`` takes away those that rules do not allow.
"""

from __future__ import annotations

from typing import Final

NOT_ASKED: Final = -(1 << 31)
"""In place of authorized operations that the client did not ask for."""
CLUSTER_OPERATIONS: Final = sum(1 << operation for operation in (5, 7, 8, 9, 10, 11, 12))
"""CREATE, ALTER, DESCRIBE, CLUSTER_ACTION, DESCRIBE_CONFIGS, ALTER_CONFIGS, IDEMPOTENT_WRITE."""
TOPIC_OPERATIONS: Final = sum(1 << operation for operation in (3, 4, 5, 6, 7, 8, 10, 11))
"""READ, WRITE, CREATE, DELETE, ALTER, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS."""
GROUP_OPERATIONS: Final = sum(1 << operation for operation in (3, 6, 8, 10, 11))
"""READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS."""
