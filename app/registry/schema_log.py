"""The seam between the registry and its log: partition 0 of the topic `_schemas`.

A ``SchemaLog`` belongs to one request: it reads and writes with the rights of the caller who sent the request.

Tests: ``tests/registry/test_schema_log_in_memory.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from app.core.errors import ConflictError

TOPIC: Final = "_schemas"


class Entry(NamedTuple):
    """One record of the log."""

    offset: int
    timestamp_ms: int
    key: bytes
    value: bytes | None


class EndMoved(ConflictError):
    """Another writer was first: nothing was appended. Read up to ``end`` and decide again."""

    def __init__(self, end: int) -> None:
        super().__init__(f"The topic {TOPIC} now ends at offset {end}. Read it to this offset and decide again.")
        self.end = end


class SchemaLog(Protocol):
    """The log as one caller may use it."""

    async def read(self, start: int) -> tuple[list[Entry], int]:
        """The entries from offset ``start`` on, and the offset at which they end.

        The end of the log is learned after the call began. The result is bounded in size. So an end may be below the end of the
        log: a caller reads again from the end that it got, until the result has no entries. A log that does not exist yet is
        empty and ends at 0.

        Raises: RequestRejected if the caller may not read, BrokerUnavailable.
        """
        ...

    async def append(
        self, expected_end: int, subject: str | None, records: Sequence[tuple[bytes, bytes | None]]
    ) -> int:
        """Append records of one subject as one batch, if the log still ends at ``expected_end``. A log that does not exist is made.

        ``subject`` is the subject that all records belong to. None is for records that belong to no topic's subject, such as
        configs and modes: these need ALTER on the cluster.

        Returns: the new end of the log.
        Raises: EndMoved if nothing was appended because the log ends elsewhere; RequestRejected if the caller may not write or the
        leader refuses the records, and nothing was appended; BrokerUnavailable if the outcome is unknown.
        """
        ...
