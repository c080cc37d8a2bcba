"""Handlers and connections note events for the audit log here (ADR 0033).

A refusal is noted where it is decided: in the ``Request``, of which ``answered`` makes one event once it has its response. The
changes of an administrative request are read from the request and its response (``audited_changes.py``). When these functions
return, the event is a line in memory, or is counted. Nothing here waits or fails.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol

from app.core.metrics import Registry
from app.handlers.policy.audited_changes import CHANGES, COUNTED, NOT_SAMPLED, ONLY_IF, Tell, resources_of
from app.handlers.policy.callers import Caller
from app.security.audit import Event, EventKind, Outcome, Tally, event, line_of, portions
from app.security.noting import Change, Resource
from app.wire.apikeys import ApiKey

if TYPE_CHECKING:
    from app.core.seams import Clock

WRITE_TXN_MARKERS: Final = int(ApiKey.WRITE_TXN_MARKERS)


class AuditLog(Protocol):
    """Takes the lines of the audit log."""

    def put(self, line: bytes, *, important: bool) -> None:
        """Have a line written soon. It may be lost, and is counted then."""
        ...


class AuditedFields(Protocol):
    """The fields of a request that the audit log uses."""

    @property
    def api_key(self) -> int: ...

    @property
    def client_id(self) -> str | None: ...

    @property
    def correlation_id(self) -> int: ...

    @property
    def caller(self) -> Caller: ...

    denied: dict[Resource, None] | None
    """Resources that the caller was refused."""

    @property
    def about(self) -> str | None: ...


def name_of(api_key: int) -> str:
    """The name of an API that is served."""
    return ApiKey(api_key).name


class Sampler:
    """Chooses one in ``one_in`` requests. It costs a subtraction."""

    __slots__ = ("_left", "one_in")

    def __init__(self, one_in: int) -> None:
        self.one_in = one_in
        self._left = one_in

    def take(self, requests: int) -> bool:
        """Count served requests. Returns: whether the last of them is chosen."""
        self._left -= requests
        if self._left > 0:
            return False
        self._left = self.one_in
        return True


class Audit:
    """The events of one broker. Belongs to one loop."""

    def __init__(
        self,
        registry: Registry,
        clock: Clock,
        broker_id: int,
        log: AuditLog | None,
        one_in: int = 0,
        *,
        is_broker: Callable[[Caller], bool] = lambda caller: False,
    ) -> None:
        """``log``: None for metrics alone. ``one_in``: one of this many allowed requests is told; 0 for none.
        ``is_broker``: whether a caller may act as a broker."""
        self._registry = registry
        self._clock = clock
        self._broker_id = broker_id
        self._log = log
        self.sampler = Sampler(one_in) if one_in and log is not None else None
        self._is_broker = is_broker
        self._denied = Tally(broker_id)
        self._allowed = Tally(broker_id)
        self._failed_changes = Tally(broker_id)
        self._counted_changes = Tally(broker_id)
        self._logins = Tally(broker_id)
        self._failed_logins = Tally(broker_id)

    # --- rights ---------------------------------------------------------------------------------------------------------

    def refused(
        self,
        caller: Caller,
        api_key: int,
        client_id: str | None,
        correlation_id: int,
        resources: Iterable[Resource],
    ) -> None:
        """Note the refused resources of a request, as one event."""
        request = name_of(api_key)
        self._registry.counter(
            "firn_denied_requests_total",
            "Requests that were refused something for want of a right, by API and listener.",
            api=request.lower(),
            listener=caller.listener,
        ).value += 1
        if self._log is not None:
            what = _access(Outcome.DENIED, caller, request, client_id, resources)
            self._put(self._denied.note(what, self._clock.now_ms(), correlation_id))

    def served(
        self,
        caller: Caller,
        api_key: int,
        client_id: str | None,
        correlation_id: int | None,
        resources: Iterable[Resource],
    ) -> None:
        """Note a served request that the sampler has chosen."""
        assert self.sampler is not None
        what = _access(Outcome.ALLOWED, caller, name_of(api_key), client_id, resources, one_in=self.sampler.one_in)
        self._put(self._allowed.note(what, self._clock.now_ms(), correlation_id))

    def answered(self, request: AuditedFields, message: Any, response: Any) -> None:
        """Write the refusals and changes of a request. ``response``: None if the client gets no response."""
        if request.denied:
            self.refused(request.caller, request.api_key, request.client_id, request.correlation_id, request.denied)
        if self._log is None:
            return
        tell = self._tell_of(request, message)
        if tell is not None:
            # By itself: a mistake in it must not fail a request that was carried out (U6).
            asyncio.get_running_loop().call_soon(self._tell_changes, tell, request, message, response)
        elif (
            self.sampler is not None
            and not request.denied
            and request.api_key not in NOT_SAMPLED
            and self.sampler.take(1)
        ):
            self.served(
                request.caller,
                request.api_key,
                request.client_id,
                request.correlation_id,
                resources_of(message),
            )

    def _tell_of(self, request: AuditedFields, message: Any) -> Tell | None:
        """The function that lists the changes of a request. None if the request changes nothing, or if it is the ordinary work of a
        consumer or broker."""
        key = request.api_key
        only_if = ONLY_IF.get(key)
        if only_if is None or only_if(message) or (key == WRITE_TXN_MARKERS and not self._is_broker(request.caller)):
            return CHANGES.get(key)
        return None

    def _tell_changes(self, tell: Tell, request: AuditedFields, message: Any, response: Any) -> None:
        changes = tell(message, response)
        if request.about is not None:
            changes = [one | {"name": request.about} for one in changes]
        if not (request.denied and _changed_nothing(changes)):
            self.changed(request, changes)

    def changed(self, request: AuditedFields, changes: Sequence[Change]) -> None:
        """A request has changed something, or has tried to. Identical ones are counted if a caller needs no right to cause them."""
        if self._log is None or not changes:
            return
        now_ms = self._clock.now_ms()
        if _changed_nothing(changes):
            what = _change(Outcome.FAILED, request, changes)
            self._put(self._failed_changes.note(what, now_ms, request.correlation_id, changes=changes))
            return
        if request.api_key in COUNTED:
            what = _change(Outcome.DONE, request, changes)
            self._put(self._counted_changes.note(what, now_ms, request.correlation_id, changes=changes))
            return
        what = _change(Outcome.DONE, request)
        for portion in portions(changes):
            self._log.put(
                line_of(
                    what,
                    now_ms,
                    broker_id=self._broker_id,
                    correlation_id=request.correlation_id,
                    changes=portion,
                ),
                important=True,
            )

    def cut_off(self, request: AuditedFields, message: Any) -> None:
        """Note that a request is dropped because the broker stops. Its changes may have been made, or not."""
        if self._log is None or self._tell_of(request, message) is None:
            return
        what = _change(Outcome.UNKNOWN, request, reason="the broker stopped before the request was answered")
        line = line_of(what, self._clock.now_ms(), broker_id=self._broker_id, correlation_id=request.correlation_id)
        self._log.put(line, important=True)

    def changed_by_broker(self, why: str, changes: Sequence[Mapping[str, Any]]) -> None:
        """The broker itself has changed something, because of ``why``."""
        if self._log is None or not changes:
            return
        outcome = Outcome.FAILED if _changed_nothing(changes) else Outcome.DONE
        what = event(EventKind.CHANGE, outcome, reason=why)
        self._log.put(line_of(what, self._clock.now_ms(), broker_id=self._broker_id, changes=changes), important=True)

    # --- logins ---------------------------------------------------------------------------------------------------------

    def logged_in(self, caller: Caller, mechanism: str) -> None:
        """Note that a client has authenticated as ``caller.principal``."""
        self._registry.counter(
            "firn_logins_total", "Logins that succeeded.", listener=caller.listener, mechanism=mechanism
        ).value += 1
        if self._log is not None:
            how: dict[str, str | int] = {"by_token": True} if caller.by_token else {}
            what = event(
                EventKind.LOGIN,
                Outcome.DONE,
                principal=caller.principal,
                host=caller.host,
                listener=caller.listener,
                mechanism=mechanism,
                via=caller.via,
                **how,  # type: ignore[arg-type] # it has no other field's name
            )
            self._put(self._logins.note(what, self._clock.now_ms()))

    def login_failed(self, listener: str, host: str, mechanism: str, why: str, user: str = "", via: str = "") -> None:
        """Note a failed login. ``user``: the name that the client gave, if any; ``why``: for the operator; ``via``: as of a
        ``Caller``."""
        self._registry.counter(
            "firn_login_failures_total",
            "Logins and TLS handshakes that failed, and requests that came before a login.",
            listener=listener,
            mechanism=mechanism or "none",
        ).value += 1
        if self._log is not None:
            what = event(
                EventKind.LOGIN,
                Outcome.FAILED,
                host=host,
                listener=listener,
                mechanism=mechanism,
                user=user,
                reason=why,
                via=via,
            )
            self._put(self._failed_logins.note(what, self._clock.now_ms()))

    # --- windows --------------------------------------------------------------------------------------------------------

    def close_window(self) -> None:
        """Write the counted events. To be called once in a while, and at the end."""
        if self._log is not None:
            for tally in (
                self._denied,
                self._failed_changes,
                self._counted_changes,
                self._failed_logins,
                self._logins,
                self._allowed,
            ):
                for line in tally.close():
                    self._log.put(line, important=False)

    def _put(self, line: bytes | None) -> None:
        if line is not None and self._log is not None:
            self._log.put(line, important=False)


def _changed_nothing(changes: Sequence[Mapping[str, Any]]) -> bool:
    return all("error" in one for one in changes)


def _change(outcome: Outcome, request: AuditedFields, changes: Sequence[Change] = (), reason: str = "") -> Event:
    caller = request.caller
    return event(
        EventKind.CHANGE,
        outcome,
        principal=caller.principal,
        host=caller.host,
        listener=caller.listener,
        request=name_of(request.api_key),
        client_id=request.client_id,
        changes=changes,
        reason=reason,
        via=caller.via,
    )


def _access(
    outcome: Outcome,
    caller: Caller,
    request: str,
    client_id: str | None,
    resources: Iterable[Resource],
    one_in: int | str = "",
) -> Event:
    return event(
        EventKind.ACCESS,
        outcome,
        principal=caller.principal,
        host=caller.host,
        listener=caller.listener,
        request=request,
        client_id=client_id,
        resources=resources,
        one_in=one_in,
        via=caller.via,
    )
