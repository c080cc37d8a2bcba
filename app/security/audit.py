"""The events of the audit log, and how often each gets a line (ADR 0033). Pure: the time comes in, lines come out.

An ``Event`` has no time. Of identical events the first is a line at once, and those that follow until the window
is closed are one line with their number (``Tally``). A caller of very many different events gets a line with their number alone. So
memory and lines are bounded by the number of callers and of windows, not by the requests of clients.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, TypeVar

from app.security.noting import Resource, short

C = TypeVar("C")
RESOURCES_MAX: Final = 8
"""Resources that one line names; of events that are counted also the changes."""
IDENTIFYING: Final = ("action", "type", "name", "topic", "member", "instance", "error")
"""The fields that two changes share if they are counted together."""
CHANGES_PER_LINE_MAX: Final = 50
CHANGES_BYTES_MAX: Final = 32 * 1024
"""Changes of one request that one line names; further ones have further lines. A single one may be longer."""
COUNTED_BYTES_MAX: Final = 4 * 1024
"""Changes that one line of an event that is counted names. A single one may be longer."""
EVENTS_PER_CALLER_MAX: Final = 200
"""Different events of one principal and address that are told one by one in a window."""
EVENTS_MAX: Final = 4_000
"""The same of all callers together: 2 MB usually, some 10 MB if all name as much as they can."""
COARSE_PER_CALLER_MAX: Final = 50
"""Further events of one caller that are counted by request and first resource or change. They count as events of all callers."""
OTHERS: Final = "various"
"""In place of values that differ between events that are counted together."""


class EventKind(StrEnum):
    """The kind of an event."""

    ACCESS = "access"
    """A right was asked for."""
    CHANGE = "change"
    """Something was changed that lasts, or the attempt failed."""
    LOGIN = "login"
    AUDIT = "audit"
    """The audit log itself."""


class Outcome(StrEnum):
    ALLOWED = "allowed"
    DENIED = "denied"
    DONE = "done"
    FAILED = "failed"
    UNKNOWN = "unknown"
    """The broker stopped meanwhile."""


Details = tuple[tuple[str, Any], ...]
"""Further fields of a line: names and values that can be compared, and that JSON has."""


@dataclass(frozen=True, slots=True)
class Event:
    """One event. Two are identical if they are equal. Make them with ``event``, which cuts names."""

    kind: EventKind
    outcome: Outcome
    principal: str = ""
    """``Type:name``; empty before a login."""
    host: str = ""
    listener: str = ""
    request: str = ""
    """Name of the API."""
    client_id: str | None = None
    details: Details = ()


def event(
    kind: EventKind,
    outcome: Outcome,
    *,
    principal: str = "",
    host: str = "",
    listener: str = "",
    request: str = "",
    client_id: str | None = None,
    resources: Iterable[Resource] = (),
    changes: Sequence[Mapping[str, Any]] = (),
    **details: str | int,
) -> Event:
    """An event, with its names cut, and as many of its resources as a line names. ``details`` that are empty are left out.

    ``changes``: those of an event that is counted. It has as many different ones as a line has room for. Each of them names only
    the thing that was to be changed, and the outcome.
    """
    more: list[tuple[str, Any]] = [
        (name, short(value) if isinstance(value, str) else value) for name, value in details.items() if value != ""
    ]
    asked = list(resources)
    if asked:
        named = tuple([Resource(one.operation, one.type, short(one.name)) for one in asked[:RESOURCES_MAX]])
        more.append(("resources", named))
        if len(asked) > RESOURCES_MAX:
            more.append(("more_resources", len(asked) - RESOURCES_MAX))
    if changes:
        different = tuple({tuple([(name, one[name]) for name in IDENTIFYING if name in one]): None for one in changes})
        shown = next(portions(different, RESOURCES_MAX, COUNTED_BYTES_MAX))
        more += _changes(tuple(shown), len(different))
    return Event(
        kind,
        outcome,
        short(principal),
        short(host),
        listener,
        request,
        None if client_id is None else short(client_id),
        tuple(more),
    )


def _with_changes(what: Event, changes: Sequence[Mapping[str, Any]]) -> Event:
    """The same event of changes for its own line: with all that is known of them, if the line has room for that."""
    shown = changes[:RESOURCES_MAX]
    if not changes or sum(len(_ENCODE(one)) for one in shown) > COUNTED_BYTES_MAX:
        return what
    return replace(what, details=tuple(_changes(shown, len(changes))))


def _changes(shown: Sequence[Any], count: int) -> list[tuple[str, Any]]:
    more = count - len(shown)
    return [("changes", shown), ("more_changes", more)] if more else [("changes", shown)]


# --- lines ----------------------------------------------------------------------------------------------------------

_ENCODE: Final = json.JSONEncoder(ensure_ascii=True, allow_nan=False, separators=(",", ":")).encode


def time_text(now_ms: int) -> str:
    """A moment of the wall clock, in UTC (RFC 3339)."""
    moment = datetime.fromtimestamp(now_ms // 1000, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{now_ms % 1000:03d}Z"


def portions(
    changes: Sequence[C], count_max: int = CHANGES_PER_LINE_MAX, bytes_max: int = CHANGES_BYTES_MAX
) -> Iterator[list[C]]:
    """The changes of one request, as many at a time as one line has room for."""
    portion: list[C] = []
    size = 0
    for one in changes:
        bytes_more = len(_ENCODE(one))
        if portion and (len(portion) >= count_max or size + bytes_more > bytes_max):
            yield portion
            portion, size = [], 0
        portion.append(one)
        size += bytes_more
    if portion:
        yield portion


def line_of(
    what: Event,
    now_ms: int,
    *,
    broker_id: int,
    correlation_id: int | None = None,
    count: int = 1,
    since_ms: int | None = None,
    changes: Iterable[Mapping[str, Any]] | None = None,
) -> bytes:
    """One line of JSON, in ASCII, with its end. ``since_ms``: when the first of ``count`` events was."""
    fields: dict[str, Any] = {
        "time": time_text(now_ms),
        "broker": broker_id,
        "event": what.kind,
        "outcome": what.outcome,
    }
    for name, value in (
        ("principal", what.principal),
        ("host", what.host),
        ("listener", what.listener),
        ("request", what.request),
    ):
        if value:
            fields[name] = value
    if what.client_id is not None:
        fields["client_id"] = what.client_id
    if correlation_id is not None:
        fields["correlation_id"] = correlation_id
    for name, value in what.details:
        if name == "resources":
            fields[name] = [one._asdict() for one in value]
        else:
            fields[name] = [dict(one) for one in value] if name == "changes" else value
    if changes is not None:
        fields["changes"] = list(changes)
    fields["count"] = count
    if since_ms is not None:
        fields["since"] = time_text(since_ms)
    return _ENCODE(fields).encode("ascii") + b"\n"


# --- counting -------------------------------------------------------------------------------------------------------


class _Count:
    __slots__ = ("first_ms", "last_ms", "number")

    def __init__(self) -> None:
        self.number = 0
        self.first_ms = self.last_ms = 0

    def add(self, now_ms: int) -> None:
        if not self.number:
            self.first_ms = now_ms
        self.last_ms = now_ms
        self.number += 1


def _coarse(what: Event) -> Event:
    """An event without the values that a client chooses freely: its client id, and all but the first resource that it named."""
    asked = tuple([(name, value[:1]) for name, value in what.details if name in ("resources", "changes")])
    return replace(what, client_id=None if what.client_id is None else OTHERS, details=asked)


class Tally:
    """Events of one window. Belongs to one loop."""

    __slots__ = (
        "_broker_id", "_by_caller", "_coarse", "_coarse_max", "_events", "_events_max", "_of_callers", "_others", "_per_caller_max",
    )  # fmt: skip

    def __init__(
        self,
        broker_id: int,
        *,
        events_max: int = EVENTS_MAX,
        events_per_caller_max: int = EVENTS_PER_CALLER_MAX,
        coarse_per_caller_max: int = COARSE_PER_CALLER_MAX,
    ) -> None:
        self._broker_id = broker_id
        self._events_max = events_max
        self._per_caller_max = events_per_caller_max
        self._coarse_max = coarse_per_caller_max
        self._events: dict[Event, _Count] = {}
        """Of each event that had a line of its own: those that followed."""
        self._coarse: dict[Event, _Count] = {}
        """Events of callers that have caused too many different ones: without the values that a client chooses freely."""
        self._by_caller: dict[tuple[str, str], int] = {}
        """How many different events each caller has caused, coarse ones too."""
        self._of_callers: dict[Event, _Count] = {}
        """The same of callers that have caused too many different coarse ones: the fields that all of them share."""
        self._others: dict[Event, _Count] = {}
        """The same of all callers that came too late: at most one of each kind and outcome."""

    def __len__(self) -> int:
        """How many counts are kept."""
        return self._different + len(self._of_callers) + len(self._others)

    @property
    def _different(self) -> int:
        return len(self._events) + len(self._coarse)

    def note(
        self,
        what: Event,
        now_ms: int,
        correlation_id: int | None = None,
        *,
        changes: Sequence[Mapping[str, Any]] = (),
    ) -> bytes | None:
        """Count an event. ``changes``: its changes with all their fields, also those in which identical events may differ.

        Returns: the line that is to be written now, if any.
        """
        count = self._events.get(what)
        if count is not None:
            count.add(now_ms)
            return None
        caller = (what.principal, what.host)
        caused = self._by_caller.get(caller, 0)
        room = self._different < self._events_max
        if not room and not caused:
            rest = event(what.kind, what.outcome, principal=OTHERS, host=OTHERS)
            self._others.setdefault(rest, _Count()).add(now_ms)
            return None
        if room and caused < self._per_caller_max:
            self._events[what] = _Count()
            self._by_caller[caller] = caused + 1
            told = _with_changes(what, changes)
            return line_of(told, now_ms, broker_id=self._broker_id, correlation_id=correlation_id)
        coarse = _coarse(what)
        count = self._coarse.get(coarse)
        if count is None and room and caused < self._per_caller_max + self._coarse_max:
            count = self._coarse[coarse] = _Count()
            self._by_caller[caller] = caused + 1
        if count is None:
            common = Event(what.kind, what.outcome, what.principal, what.host, what.listener, OTHERS)
            count = self._of_callers.setdefault(common, _Count())
        count.add(now_ms)
        return None

    def close(self) -> list[bytes]:
        """End the window. Returns: the lines of events that were counted and have no line yet."""
        lines = [
            line_of(what, count.last_ms, broker_id=self._broker_id, count=count.number, since_ms=count.first_ms)
            for counts in (self._events, self._coarse, self._of_callers, self._others)
            for what, count in counts.items()
            if count.number
        ]
        self._events = {}
        self._coarse = {}
        self._by_caller = {}
        self._of_callers = {}
        self._others = {}
        return lines


# --- waiting to be written ------------------------------------------------------------------------------------------


class Lines:
    """Lines that wait, up to so many bytes; half of them are kept for ``important`` ones. Belongs to one loop."""

    __slots__ = ("_bytes", "_lines", "_max", "lost")

    def __init__(self, bytes_max: int) -> None:
        self._max = bytes_max
        self._lines: list[bytes] = []
        self._bytes = 0
        self.lost = 0
        """Lines for which there was no room, since this was last set to 0."""

    def __len__(self) -> int:
        return len(self._lines)

    def put(self, line: bytes, *, important: bool) -> bool:
        """Returns: whether there was room."""
        if self._bytes + len(line) > (self._max if important else self._max // 2):
            self.lost += 1
            return False
        self._lines.append(line)
        self._bytes += len(line)
        return True

    def take(self) -> list[bytes]:
        """All of them; they wait no longer."""
        taken, self._lines, self._bytes = self._lines, [], 0
        return taken


def lost_line(lost: int, why: str, now_ms: int, broker_id: int) -> bytes:
    """Says that there is a gap."""
    return line_of(
        replace(event(EventKind.AUDIT, Outcome.FAILED), details=(("reason", why),)),
        now_ms,
        broker_id=broker_id,
        count=lost,
    )
