"""Notes the request that the loop serves, for the line that names the cause of a stall (``app/broker/watching/loop_watch.py``).

A connection notes itself in its server at each read, a request other than Produce at each step that it takes. A note is never taken
back, which would cost as much again: the watch believes the note only while one of ``session.SERVING`` is being run.

Tests: ``tests/broker/test_loop_watch.py``.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from typing import TYPE_CHECKING, Any, Final

from app.handlers.base.request import Request
from app.handlers.clients.client import Client, RequestFields
from app.handlers.state.metrics import PRIVATE_NAMES
from app.wire.apikeys import ApiKey

if TYPE_CHECKING:
    from app.handlers.clients.client import Service
    from app.handlers.policy.callers import Quotas

PRODUCE: Final = 0
CLIENT_ID_SHOWN_MAX: Final = 100


class _Steps:
    """Runs a coroutine, notes its request at each of its steps, and charges its client the time of each."""

    __slots__ = ("_began_s", "_owed_s", "_request", "_service", "_timed", "_work")

    def __init__(self, service: Service, request: Request, work: Coroutine[Any, Any, Any]) -> None:
        self._service = service
        self._request = request
        self._work = work
        self._timed: Quotas | None = None
        """The quotas that the time of the step is charged to; None between steps, and if time has no limit."""
        self._began_s = 0.0
        self._owed_s = 0.0
        """Time of steps that may have to be charged: it is not known yet whether the request is free."""

    def _begin(self) -> None:
        service = self._service
        service.serving = self._request
        quotas = service.context.quotas
        if quotas is not None and quotas.counts_time:
            self._timed, self._began_s = quotas, quotas.between_calls_s()

    def _end(self) -> None:
        timed, request = self._timed, self._request
        if timed is not None:
            self._timed = None
            self._owed_s += timed.between_calls_s() - self._began_s
            if request.is_free is None:
                return
            if not request.is_free:
                timed.stepped(request.caller, request.client_id, request.api_key, self._owed_s)
            self._owed_s = 0.0

    def __await__(self) -> Generator[Any, Any, Any]:
        steps = self._work.__await__()
        self._begin()
        try:
            waits = next(steps)
            while True:
                self._end()
                try:
                    got = yield waits
                except BaseException as error:  # noqa: BLE001 - handed to the coroutine
                    waits = None  # it holds the error, which holds this frame
                    self._begin()
                    waits = steps.throw(error)
                else:
                    self._begin()
                    waits = steps.send(got)
        except StopIteration as end:
            return end.value
        finally:
            self._end()


async def told(service: Service, request: Request, work: Coroutine[Any, Any, Any]) -> None:
    """``work``, which serves a request; the service knows of each of its steps, and its client is charged their time."""
    await _Steps(service, request, work)


def request_of(client: Client, asked: RequestFields, api_key: int, client_id: str | None) -> Request:
    """A request as ``told`` takes it, of an API that has no ``Request`` of its own."""
    return Request(api_key, asked.version, asked.correlation_id, client_id, client.caller, client.on_close)


def spawn_told(client: Client, request: Request, work: Coroutine[Any, Any, None]) -> None:
    """Have ``work`` serve a request of a connection as a task, as ``told`` says."""
    client.server.spawn(told(client.server, request, work), client, work)


STEPS: Final = _Steps.__await__.__code__
"""Runs during each step of a request."""


def name_of(api_key: int) -> str:
    try:
        return ApiKey(api_key).name
    except ValueError:
        return PRIVATE_NAMES.get(api_key, f"API key {api_key}").upper()


def in_words(serving: Any) -> tuple[str, str] | None:
    """Return the API of a note, and the whole note: API, principal, client id, address. None if nothing was served yet."""
    client_id: str | None
    if isinstance(serving, Request):
        api, client_id, caller = name_of(serving.api_key), serving.client_id, serving.caller
        principal, address = caller.principal, f"{caller.host}:{caller.port}"
    elif isinstance(serving, tuple):
        client, api_key = serving
        api, client_id, principal, address = name_of(api_key), None, client.caller.principal, client.peer
    elif isinstance(serving, Client):
        shape = serving.produced_shape
        api, client_id = name_of(PRODUCE), None if shape is None else shape.client_id
        principal, address = serving.caller.principal, serving.peer
    else:
        return None
    said = "without a client id" if client_id is None else f"client id {client_id[:CLIENT_ID_SHOWN_MAX]!r}"
    return api, f"{api} of {principal}, {said}, from {address}"
