"""Authenticates the clients of a listener, by certificates and logins, before their first request is served.

Tests: ``tests/transport/test_mutated_logins.py``, ``tests/handlers/test_frame_memory.py``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from app.core.addresses import ADDRESS_CHARS_MAX, Networks, read_address
from app.core.errors import ProtocolError
from app.handlers.policy.callers import ANONYMOUS
from app.handlers.serving.session import API_VERSIONS, FRAME_HEAD, FRAME_HEAD_BYTES, Session
from app.security.login import Login, Reply, State
from app.transport.connection import Connection
from app.transport.core import FRAME_SIZE, REQUEST_BYTES_MIN
from app.wire.apikeys import ApiKey
from app.wire.apis.sasl_authenticate import SaslAuthenticateRequest, SaslAuthenticateResponse
from app.wire.apis.sasl_handshake import SaslHandshakeRequest, SaslHandshakeResponse
from app.wire.codec import decode_request
from app.wire.framing import response_frame
from app.wire.header import parse_request_header
from app.wire.private import ForwardedRequest, ForwardedResponse, pack, unpack
from app.wire.versions import is_served

if TYPE_CHECKING:
    import asyncio
    import ssl

    from app.configs.listeners import ListenerConfig
    from app.handlers.clients.client import Service
    from app.machine.certificates import Certificates
    from app.security.names import PrincipalRules
    from app.security.sasl import Mechanism
    from app.transport.arrivals import Arrival, Arrivals

SASL_HANDSHAKE: Final = int(ApiKey.SASL_HANDSHAKE)
SASL_AUTHENTICATE: Final = int(ApiKey.SASL_AUTHENTICATE)
FORWARDED: Final = int(ApiKey.FIRN_FORWARDED)
BEFORE_LOGIN: Final = frozenset({API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE, FORWARDED})
OPAQUE_BYTES_MIN: Final = 1
MS_PER_S: Final = 1000
TLS: Final = "TLS"
"""The mechanism of a client that is known by its certificate."""
NOBODYS: Final = Networks()
NOBODY: Final = "No rule of ssl.principal.mapping.rules fits its certificate."


class DoorService(Protocol):
    """The part of the server that a ``ListenerAuthentication`` uses."""

    arrivals: Arrivals
    failure_delay_ms: int


class ListenerAuthentication:
    """The authentication of one listener."""

    def __init__(
        self,
        config: ListenerConfig,
        *,
        certificates: Certificates | None,
        rules: PrincipalRules | None,
        new_mechanism: Callable[[str], Mechanism] | None,
        proxies: Networks = NOBODYS,
    ) -> None:
        """``certificates``: the TLS of the listener; None for none. ``rules`` make users of clients' certificates.
        ``new_mechanism`` begins a login by a mechanism; None for a listener without SASL. ``proxies`` may name the client for
        which they connect."""
        self.config = config
        self.certificates = certificates
        self.rules = rules
        self.new_mechanism = new_mechanism
        self.proxies = proxies
        self.receive_bytes_max = config.number("sasl.server.max.receive.size", 524_288)
        self.new_shown: type[ShownSession] = ShownSession
        self.new_login: type[LoginSession] = LoginSession
        self.reauthenticate_ms: Mapping[str, int] = {one: config.reauthenticate_ms(one) for one in config.mechanisms}

    def make(self, server: Service) -> asyncio.BaseProtocol:
        """Return the protocol of the next connection, with the present ``certificates`` and ``rules``."""
        session: ShownSession | LoginSession
        if self.new_mechanism is not None:
            session = self.new_login(server, self, Login(self.config.mechanisms, self.new_mechanism))
        else:
            session = self.new_shown(server, self)
        connection = Connection(server, session)
        if self.certificates is None:
            assert isinstance(session, LoginSession)
            session.abort_early = connection.abort
            return connection
        from app.transport.tls import TlsLink

        return TlsLink(server, self.certificates.context, connection, session.shaken, self.config.name)

    def principal_of(self, certificate: bytes | None) -> str | None:
        """The principal of a client's certificate; None if no rule makes a user of its name."""
        if certificate is None or self.rules is None:
            return ANONYMOUS
        from app.security.names import rfc2253, subject_of

        try:
            user = self.rules.apply(rfc2253(subject_of(certificate)))
        except ValueError:
            return None
        return None if user is None else f"User:{user}"


class ShownSession(Session):
    """A client that may authenticate by its certificate."""

    __slots__ = ("_certificate", "_door", "_nobody")

    def __init__(self, server: Service, door: ListenerAuthentication) -> None:
        super().__init__(server, door.config.name)
        self._door = door
        self._certificate: bytes | None = None
        self._nobody = False
        """No user belongs to the certificate: nothing is served."""

    def shaken(self, tls: ssl.SSLObject, arrival: Arrival) -> None:
        """The handshake is done."""
        arrival.over()
        self._certificate = tls.getpeercert(binary_form=True)

    def opened(self, host: str, port: int) -> None:
        super().opened(host, port)
        principal = self._door.principal_of(self._certificate)
        self._certificate = None
        audit = self.context.audit
        if principal is None:
            self._nobody = True
            if audit is not None:
                audit.login_failed(self.listener, host, TLS, NOBODY)
            self.server.loop.call_soon(self._let_go)  # the shell is not there yet
        elif principal != ANONYMOUS:
            self.speak_as(self.context.doorkeeper.authenticated(self.caller, principal, math.inf))
            if audit is not None:
                audit.logged_in(self.caller, TLS)

    def _let_go(self) -> None:
        if not self.closed:
            self.fail(f"closing the connection of {self.peer}: {NOBODY}")

    def serve(self, view: memoryview, position: int, end: int) -> int:
        if self._nobody:
            raise ProtocolError(NOBODY)
        return super().serve(view, position, end)


class LoginSession(Session):
    """A client that has to log in (SASL)."""

    __slots__ = ("_arrival", "_door", "_login", "abort_early")

    def __init__(self, server: Service, door: ListenerAuthentication, login: Login) -> None:
        super().__init__(server, door.config.name)
        self._door = door
        self._login = login
        self._arrival: Arrival | None = None
        self.abort_early: Callable[[], None] | None = None
        """Ends a connection without TLS whose client is too slow."""

    def shaken(self, tls: ssl.SSLObject, arrival: Arrival) -> None:
        """The handshake is done; the login goes on under the same deadline."""
        self._arrival = arrival

    def opened(self, host: str, port: int) -> None:
        super().opened(host, port)
        if self.abort_early is not None:
            self._arrival = self.server.arrivals.begin(self.abort_early)
            self.abort_early = None
        assert self._arrival is not None
        self.on_close.add(self._arrival)

    @property
    def is_proven(self) -> bool:
        """Whether the client has logged in, even if the session has ended by now."""
        return self.caller.principal != ANONYMOUS

    # --- serving ------------------------------------------------------------------------------------------------------

    def serve(self, view: memoryview, position: int, end: int) -> int:
        while True:
            if not self._is_open():
                position = self._serve_login(view, position, end)  # when a session has ended, a handshake or nothing
                if not self._is_open() or self.ending is not None:
                    return position
            position = super().serve(view, position, end)
            if not self.logging_in or self.ending is not None:
                return position

    def _is_open(self) -> bool:
        """Whether the client has logged in, and that has not ended."""
        return self._login.state is State.OPEN and self.server.loop.time() < self.caller.expires_s

    def _serve_login(self, view: memoryview, position: int, end: int) -> int:
        """Serve frames until the client is logged in, one at a time. Raises: ProtocolError."""
        try:
            return self._serve_frames(view, position, end)
        except ProtocolError as error:
            self._failed(str(error))
            raise

    def _serve_frames(self, view: memoryview, position: int, end: int) -> int:
        login = self._login
        while end - position >= FRAME_SIZE.size and not self._waiters and self.ending is None and not self._slots:
            (size,) = FRAME_SIZE.unpack_from(view, position)
            least = OPAQUE_BYTES_MIN if login.opaque else REQUEST_BYTES_MIN
            if not least <= size <= self._door.receive_bytes_max:
                raise ProtocolError(f"A client that has not logged in sends {size} bytes.")
            frame_end = position + FRAME_SIZE.size + size
            if frame_end > end:
                break
            frame = view[position + FRAME_SIZE.size : frame_end]
            if login.opaque:
                self._take_opaque(bytes(frame))
            else:
                assert frame_end - position >= FRAME_HEAD_BYTES
                _, api_key, api_version, correlation_id = FRAME_HEAD.unpack_from(view, position)
                if api_key != SASL_HANDSHAKE and login.state is State.OPEN:
                    raise ProtocolError(
                        "The session has ended: the client has to log in again before it asks for more."
                    )
                login.check_served(api_key, BEFORE_LOGIN)
                self._serve_one(api_key, api_version, correlation_id, frame)
            position = frame_end
            if self._is_open():
                break
        return position

    def _serve_one(self, api_key: int, api_version: int, correlation_id: int, frame: memoryview) -> None:
        if api_key == FORWARDED and self._login.state is not State.OPEN:
            self._take_forwarded(api_version, correlation_id, frame)
            return
        if api_key not in (SASL_HANDSHAKE, SASL_AUTHENTICATE):
            super()._serve_one(api_key, api_version, correlation_id, frame)
            return
        meter = self.server.metrics.meter(api_key)
        meter.requests.value += 1
        meter.request_bytes.value += len(frame)
        if not is_served(api_key, api_version):
            raise ProtocolError(f"Version {api_version} of API key {api_key} is not served.")
        body = frame[parse_request_header(frame).body_start :]
        message = decode_request(api_key, api_version, body)
        if isinstance(message, SaslHandshakeRequest):
            code, mechanisms = self._login.handshake(api_version, message.mechanism, self.server.loop.time())
            answer = SaslHandshakeResponse(code, list(mechanisms))
            self.answer(response_frame(api_key, api_version, correlation_id, answer))
            self.logging_in = self._login.state is not State.OPEN
            if not self._login.goes_on(code):
                self._failed(code.name.lower().replace("_", " "))
                self.fail(f"closing the connection of {self.peer}: {code.name.lower().replace('_', ' ')}")
        else:
            assert isinstance(message, SaslAuthenticateRequest)
            reply = self._login.authenticate(bytes(message.auth_bytes))
            lifetime_ms = self._enter(reply)
            answered = SaslAuthenticateResponse(reply.code, reply.sentence or "", reply.token, lifetime_ms)
            self._reply(reply, response_frame(api_key, api_version, correlation_id, answered))
        meter.observe(self.server.loop.time() - self.started_s, 1)

    def _take_forwarded(self, api_version: int, correlation_id: int, frame: memoryview) -> None:
        """The connection is made for a client at another address (ADR 0034, HF1). Raises: ProtocolError."""
        meter = self.server.metrics.meter(FORWARDED)
        meter.requests.value += 1
        meter.request_bytes.value += len(frame)
        if not is_served(FORWARDED, api_version):
            raise ProtocolError(f"Version {api_version} of API key {FORWARDED} is not served.")
        body = decode_request(FORWARDED, api_version, frame[parse_request_header(frame).body_start :])
        host, why = self._forwarded(unpack(ForwardedRequest, body).address)
        self.answer(response_frame(FORWARDED, api_version, correlation_id, pack(ForwardedResponse(why))))
        if why:
            self._failed(why)
            self.fail(f"closing the connection of {self.peer}: {why}")
            return
        self.speak_as(self.context.doorkeeper.forwarded(self.caller, host))
        meter.observe(self.server.loop.time() - self.started_s, 1)

    def _forwarded(self, text: str) -> tuple[str, str]:
        """An address that is named, in its one form, and why it does not count; empty if it does."""
        own = self.caller.via or self.caller.host
        if own not in self._door.proxies:
            return "", f"it names another address, and {own} is not in firn.trusted.proxies of this broker"
        if self._login.state is not State.SILENT or self.caller.via:
            return "", "it names another address, and not at its beginning"
        if len(text) > ADDRESS_CHARS_MAX:
            return "", "what it names is not an address"
        try:
            return str(read_address(text)), ""
        except ValueError:
            return "", "what it names is not an address"

    def _take_opaque(self, token: bytes) -> None:
        reply = self._login.authenticate(token)
        self._enter(reply)
        self._reply(reply, FRAME_SIZE.pack(len(reply.token)) + reply.token if not reply.code else b"")

    def _failed(self, why: str, user: str = "") -> None:
        """Note a failed login in the audit log."""
        audit = self.context.audit
        if audit is not None:
            audit.login_failed(self.listener, self.caller.host, self._login.chosen, why, user, self.caller.via)

    def _enter(self, reply: Reply) -> int:
        """Serve requests as the user who has logged in. Returns: for how many milliseconds; 0: until the connection ends."""
        if reply.failure is not None:
            self._failed(*reply.failure)
        entered = reply.logged_in
        if entered is None:
            return 0
        if self._arrival is not None:
            self.on_close.discard(self._arrival)
            self._arrival.over()
            self._arrival = None
        self.logging_in = False
        left_ms = [entered.expires_ms - self.context.clock.now_ms()]
        if again_ms := self._door.reauthenticate_ms.get(self._login.chosen, 0):
            left_ms.append(again_ms)
        lifetime_ms = max(1, min(left_ms))
        self._login.session_ends = not math.isinf(lifetime_ms)
        expires_s = self.server.loop.time() + lifetime_ms / MS_PER_S
        principal = f"User:{entered.user}"
        self.speak_as(
            self.context.doorkeeper.authenticated(self.caller, principal, expires_s, by_token=entered.by_token)
        )
        if self.context.audit is not None:
            self.context.audit.logged_in(self.caller, self._login.chosen)
        return int(lifetime_ms) if self._login.session_ends else 0

    def _reply(self, reply: Reply, frame: bytes) -> None:
        if self._login.goes_on(reply.code):
            self.answer(frame)
            return
        line = f"closing the connection of {self.peer}: its login by {self._login.chosen or 'SASL'} failed"
        self.stop_parsing()
        # Clients take a refusal for final. They connect again if the connection ends without a refusal.
        _Late(self, b"" if self.context.users_due else frame, line)


class _Late:
    """A failed login that is answered after a while, so that guessing takes time."""

    __slots__ = ("_frame", "_line", "_session", "_timer")

    def __init__(self, session: LoginSession, frame: bytes, line: str) -> None:
        self._session = session
        self._frame = frame
        self._line = line
        server = session.server
        self._timer: asyncio.TimerHandle | None = server.loop.call_later(server.failure_delay_ms / MS_PER_S, self._over)
        session.on_close.add(self)

    def _over(self) -> None:
        self._timer = None  # each holds the other
        session = self._session
        session.on_close.discard(self)
        if self._frame:
            session.answer(self._frame)
        session.fail(self._line)

    def cancel(self) -> None:
        """The connection has ended."""
        if self._timer is not None:
            self._timer.cancel()
