"""The callers of HTTP requests: connections to brokers that are logged in with a request's credential, kept for its next request.

A ``HttpCaller`` is one credential that a broker has accepted, with a ``Gateway`` of its own. ``Callers`` keeps them by a digest of
their credentials. A credential that a broker has refused is not kept. Rules: docs/adr/0034-http-callers.md.
"""

from __future__ import annotations

import asyncio
import math
import random
import secrets
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from ipaddress import ip_network
from types import TracebackType
from typing import Any, Final, Self

from app import __version__
from app.client.cluster import ClusterClient
from app.client.connection import KafkaConnection, open_connection
from app.client.security import ClientSecurity, Reach, SecureDialer, client_security, offered_mechanisms
from app.core.addresses import read_address
from app.core.errors import BrokerUnavailable, ErrorCode, FirnError, RequestRejected, copy_of
from app.core.faults import Faults
from app.core.limits import MIB
from app.core.metrics import Registry
from app.core.seams import Clock
from app.http.access import check_origins, check_rights
from app.http.credentials import DIGEST_BYTES, Basic, Credential, digest_of
from app.http.errors import REFUSED, RestAnswer
from app.http.gateway import CLIENT_ID, PATIENCE_S, READY_TIMEOUT_S, Gateway, HttpSettings, connection_kind
from app.http.read_budget import ReadBudget

CALLERS_MAX: Final = 200
PLACES_PART: Final = 0.5
"""Of all callers, those that one credential may be at different addresses."""
CALLER_BUFFER_BYTES_MAX: Final = 16 * MIB
"""Of records that are not stored yet. One record of the largest size fits in it."""
CHECK_AGAIN_S: Final = 60.0
"""A removed user is served for so long at most."""
CHECK_SOON_PART: Final = 0.75
"""Of the time to the next check, after which a request begins it."""
IDLE_S: Final = 60.0
LOGINS_MAX: Final = 16
"""Under way. Each hashes a password thousands of times."""
LOGINS_PER_ADDRESS_MAX: Final = 4
LOGIN_WAIT_S: Final = 5.0
ADMISSIONS_MAX: Final = 3
"""How often a request logs in again because its caller was evicted before it was used."""
RETRY_S: Final = 1.0
"""Between two checks of a credential while no broker can be reached."""
MECHANISMS_KEPT_S: Final = 60.0
LIFETIME_S_MIN: Final = 0.1
"""A session that ends sooner has ended: brokers take tokens a little past their end, because clocks differ."""
SCRAM: Final = ("SCRAM-SHA-512", "SCRAM-SHA-256")
TOKENS: Final = "OAUTHBEARER"

BUSY: Final = RestAnswer(503, 50302, "The server has as many users as it can serve. Try again in a few seconds.")


class CallerRefused(Exception):
    """A request without a caller."""

    def __init__(self, answer: RestAnswer) -> None:
        super().__init__(answer.message)
        self.answer = answer


@dataclass(frozen=True, slots=True, kw_only=True)
class CallerLimits:
    callers_max: int = CALLERS_MAX
    logins_max: int = LOGINS_MAX
    logins_per_address_max: int = LOGINS_PER_ADDRESS_MAX
    login_wait_s: float = LOGIN_WAIT_S
    check_again_s: float = CHECK_AGAIN_S
    idle_s: float = IDLE_S


def callers_log_in(client: Mapping[str, str]) -> bool:
    """Whether brokers that are reached with these settings ask for a login. Raises: ConfigError."""
    return client_security(client, needs_user=False).protocol.sasl


def check_reach(settings: HttpSettings) -> None:
    """Raises: ConfigError, if these settings would give callers rights that are not theirs."""
    security = client_security(settings.client, needs_user=settings.anonymous)
    check_rights(by_certificate=security.by_certificate, anonymous=settings.anonymous)
    if security.protocol.sasl:
        check_origins(settings.allowed_origins)


def mechanisms_for(credential: Credential, offered: tuple[str, ...], *, knows_broker: bool) -> tuple[str, ...]:
    """The SASL mechanisms by which a credential may be sent to a broker, the first choice first. A broker could replay a password
    or a token. So these are only sent to a broker whose certificate was verified."""
    if not isinstance(credential, Basic):
        return (TOKENS,) if TOKENS in offered and knows_broker else ()
    found = tuple(one for one in SCRAM if one in offered)
    return found or (("PLAIN",) if "PLAIN" in offered and knows_broker else ())


class HttpCaller:
    """One credential that a broker has accepted; from one address, if brokers are told it."""

    def __init__(self, key: bytes, gateway: Gateway, dialer: SecureDialer) -> None:
        self.key = key
        """The digest of the credential, and the address if brokers are told it."""
        self.gateway = gateway
        self.dialer = dialer
        self.requests = 0
        """Under way."""
        self.instances = 0
        """Consumer instances that keep this caller while it has no requests."""
        self.used_s = 0.0
        self.check_s = math.inf
        """Loop time from which on the credential has to be shown again before a request is served."""
        self.check_soon_s = math.inf
        """Loop time from which on it is shown again while requests are served."""
        self.ended = False
        self.on_end: set[Callable[[], None]] = set()
        """Called once, when the credential counts no more."""
        self.timer: asyncio.TimerHandle | None = None
        self.checking: asyncio.Task[None] | None = None


class Callers:
    """All of a process. ``async with`` closes their connections."""

    def __init__(
        self,
        settings: HttpSettings,
        *,
        clock: Clock,
        rng: random.Random,
        registry: Registry,
        faults: Faults,
        limits: CallerLimits | None = None,
        read_budget: ReadBudget | None = None,
    ) -> None:
        """``read_budget``: of the process. Raises: ConfigError."""
        self._settings = settings
        self._read_budget = ReadBudget() if read_budget is None else read_budget
        self._clock = clock
        self._rng = rng
        self._registry = registry
        self._faults = faults
        self._limits = CallerLimits() if limits is None else limits
        security = client_security(settings.client, needs_user=False)
        self._protocol = security.protocol
        self._reach = Reach(security.tls)
        self._key = secrets.token_bytes(32)
        self._known: OrderedDict[bytes, HttpCaller] = OrderedDict()
        """The one that was used longest ago first."""
        self._logins: dict[bytes, asyncio.Task[HttpCaller]] = {}
        self._turns = _Turns(self._limits)
        self._offered: tuple[str, ...] = ()
        self._offered_until_s = -math.inf
        self._asking: asyncio.Task[tuple[str, ...]] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        text = "Credentials of HTTP callers for which connections to brokers are kept."
        registry.gauge("firn_http_callers", text, lambda: [((), float(len(self._known)))])

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        under_way = [*self._tasks]
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
        for caller in tuple(self._known.values()):
            self.end(caller)
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- requests -----------------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def serving(self, credential: Credential, address: str) -> AsyncIterator[HttpCaller]:
        """The caller of a request from ``address``. It is kept at least until the request's end.

        Raises: Refusal, BrokerUnavailable, RequestRejected.
        """
        caller = await self._admit(credential, address)
        try:
            yield caller
        finally:
            caller.requests -= 1
            caller.used_s = asyncio.get_running_loop().time()

    async def _admit(self, credential: Credential, address: str) -> HttpCaller:
        key = digest_of(self._key, credential)
        if self._settings.names_callers:
            key += address.encode()
        loop = asyncio.get_running_loop()
        for _ in range(ADMISSIONS_MAX):
            caller = self._known.get(key)
            if caller is None:
                caller = await self._logged_in(key, credential, address)
            elif loop.time() >= caller.check_s:
                await self._checked(caller)
            elif loop.time() >= caller.check_soon_s and caller.checking is None:
                self._spawn(self._check_in_background(caller))  # so that no request has to wait for it
            if not caller.ended:
                # No await from here on, so a request that evicts callers sees that this one is in use.
                self._known.move_to_end(key)
                caller.requests += 1
                return caller
        raise CallerRefused(BUSY)

    async def _logged_in(self, key: bytes, credential: Credential, address: str) -> HttpCaller:
        """Requests with the same credential share one login."""
        task = self._logins.get(key)
        if task is None:
            task = self._logins[key] = self._spawn(self._log_in(key, credential, address))
            task.add_done_callback(lambda _: self._logins.pop(key, None))
        caller: HttpCaller = await _shared(task)
        return caller

    async def check_ready(self) -> None:
        """Raises: FirnError or TimeoutError if no broker answers soon."""
        async with asyncio.timeout(READY_TIMEOUT_S):
            connection = await self._connected()
        await connection.close()

    # --- logging in ---------------------------------------------------------------------------------------------------

    async def _log_in(self, key: bytes, credential: Credential, address: str) -> HttpCaller:
        async with self._turns.turn(address):
            try:
                caller = await self._tried(key, credential, address)
            except CallerRefused as refusal:
                self._count("refused" if refusal.answer.status == 401 else "busy")
                raise
            except FirnError:
                self._count("unavailable")
                raise
        self._count("accepted")
        return caller

    async def _tried(self, key: bytes, credential: Credential, address: str) -> HttpCaller:
        """Raises: as ``serving``."""
        offered = await self.mechanisms()
        mechanisms = mechanisms_for(credential, offered, knows_broker=self._reach.knows_broker)
        if not mechanisms:
            kind = "password" if isinstance(credential, Basic) else "token"
            listed = ", ".join(offered) or "no login"
            over = "" if self._reach.knows_broker else " without TLS that checks its name"
            self._faults.met(
                "logins of HTTP callers by",
                kind,
                f"no HTTP caller can log in by {kind}: the broker offers {listed}{over}",
            )
        for mechanism in mechanisms:
            dialer = SecureDialer(
                self._security(credential, mechanism),
                self._reach,
                speaks_for=address if self._settings.names_callers else None,
            )
            cluster = ClusterClient(
                self._settings.bootstrap,
                rng=self._rng,
                client_id=CLIENT_ID,
                retry_budget_ms=self._settings.retry_budget_ms,
                patience_s=PATIENCE_S,
                dial=dialer,
                kind=connection_kind(self._settings),
            )
            gateway = Gateway(
                self._settings,
                cluster,
                self._clock,
                self._registry,
                self._faults,
                of_caller=True,
                buffer_bytes_max=CALLER_BUFFER_BYTES_MAX,
                read_budget=self._read_budget,
            )
            async with AsyncExitStack() as unless_kept:
                unless_kept.push_async_callback(gateway.close)
                try:
                    await cluster.any_broker()
                    _check_lifetime(dialer)
                except RequestRejected as error:
                    if error.code is ErrorCode.UNSUPPORTED_SASL_MECHANISM:
                        self._offered_until_s = -math.inf  # the broker has changed
                        raise BrokerUnavailable(str(error)) from None
                    if error.code is not ErrorCode.SASL_AUTHENTICATION_FAILED:
                        raise
                    continue
                caller = self._keep(HttpCaller(key, gateway, dialer))
                unless_kept.pop_all()
                return caller
        raise CallerRefused(REFUSED)

    def _security(self, credential: Credential, mechanism: str) -> ClientSecurity:
        if isinstance(credential, Basic):
            return ClientSecurity(
                protocol=self._protocol, mechanism=mechanism, user=credential.user, password=credential.password
            )
        return ClientSecurity(protocol=self._protocol, mechanism=mechanism, token=credential.token)

    def _keep(self, caller: HttpCaller) -> HttpCaller:
        """Give a caller a place. Raises: Refusal if all places are in use, or all places that its credential may have."""
        credential = caller.key[:DIGEST_BYTES]
        own = [one for one in self._known.values() if one.key.startswith(credential)]
        if len(own) >= max(1, int(self._limits.callers_max * PLACES_PART)):
            candidates = own
        else:
            candidates = list(self._known.values()) if len(self._known) >= self._limits.callers_max else []
        if candidates:
            idle = [one for one in candidates if not one.requests]
            unused = next((one for one in idle if not one.instances), None) or next(iter(idle), None)
            if unused is None:
                raise CallerRefused(BUSY)
            self.end(unused)
        caller.used_s = asyncio.get_running_loop().time()
        self._known[caller.key] = caller
        self._confirmed(caller)
        return caller

    async def mechanisms(self) -> tuple[str, ...]:
        """How one may log in, as a broker said not long ago. Raises: BrokerUnavailable, RequestRejected."""
        loop = asyncio.get_running_loop()
        if loop.time() < self._offered_until_s:
            return self._offered
        if self._asking is None:
            self._asking = self._spawn(self._ask_mechanisms())
            self._asking.add_done_callback(self._asked)
        found: tuple[str, ...] = await _shared(self._asking)
        return found

    @property
    def offered(self) -> tuple[str, ...]:
        """Ways to log in, as a broker has said them; none if it has not yet."""
        return self._offered

    def _asked(self, task: asyncio.Task[tuple[str, ...]]) -> None:
        self._asking = None
        if not task.cancelled() and task.exception() is None:
            self._offered = task.result()
            self._offered_until_s = asyncio.get_running_loop().time() + MECHANISMS_KEPT_S

    async def _ask_mechanisms(self) -> tuple[str, ...]:
        """Raises: BrokerUnavailable, RequestRejected."""
        connection = await self._connected()
        try:
            return await offered_mechanisms(connection, self._offered[0] if self._offered else SCRAM[0])
        finally:
            await connection.close()

    async def _connected(self) -> KafkaConnection:
        """The first broker that answers, without a login. Raises: BrokerUnavailable, RequestRejected."""
        failures: list[str] = []
        for host, port in self._settings.bootstrap:
            try:
                return await open_connection(
                    host, port, client_id=CLIENT_ID, software_version=__version__, dial=self._reach
                )
            except BrokerUnavailable as error:
                failures.append(str(error))
        raise BrokerUnavailable(" ".join(failures))

    # --- checking again, and the end ----------------------------------------------------------------------------------

    async def _checked(self, caller: HttpCaller) -> None:
        """Show the credential to a broker again. Raises: as ``serving``."""
        if caller.checking is None:
            caller.checking = self._spawn(self._check(caller))
            caller.checking.add_done_callback(lambda _: setattr(caller, "checking", None))
        await _shared(caller.checking)

    async def _check(self, caller: HttpCaller) -> None:
        try:
            await caller.gateway.cluster.log_in_again()
            _check_lifetime(caller.dialer)
        except RequestRejected as error:
            if error.code is ErrorCode.SASL_AUTHENTICATION_FAILED:
                self.end(caller)
                raise CallerRefused(REFUSED) from None
            raise BrokerUnavailable(str(error)) from None
        self._confirmed(caller)

    def _confirmed(self, caller: HttpCaller) -> None:
        """A broker has accepted the credential just now."""
        lifetime_s = caller.dialer.lifetime_s
        again_s = self._limits.check_again_s if lifetime_s is None else min(self._limits.check_again_s, lifetime_s)
        now_s = asyncio.get_running_loop().time()
        caller.check_s = now_s + again_s
        caller.check_soon_s = now_s + max(again_s * CHECK_SOON_PART, RETRY_S)
        self._arm(caller, min(again_s, self._limits.idle_s))

    def _arm(self, caller: HttpCaller, seconds: float) -> None:
        if caller.timer is not None:
            caller.timer.cancel()
        caller.timer = asyncio.get_running_loop().call_later(seconds, self._look, caller)

    def _look(self, caller: HttpCaller) -> None:
        """Drop a caller that has been idle for long, and check the credential of one that is still in use."""
        if caller.ended:
            return
        now_s = asyncio.get_running_loop().time()
        if not caller.requests and not caller.instances:
            left_s = caller.used_s + self._limits.idle_s - now_s
            if left_s <= 0:
                self.end(caller)
            else:
                self._arm(caller, left_s)
        elif now_s < caller.check_s:
            self._arm(caller, min(caller.check_s - now_s, self._limits.idle_s))
        else:
            self._arm(caller, RETRY_S)
            self._spawn(self._check_in_background(caller))

    async def _check_in_background(self, caller: HttpCaller) -> None:
        try:
            await self._checked(caller)
        except CallerRefused:
            pass  # it has ended
        except FirnError as error:
            self.tell_unavailable(error)

    def end(self, caller: HttpCaller) -> None:
        """Its credential counts no more, or it has left: requests under way end, and its connections close."""
        if caller.ended:
            return
        caller.ended = True
        if self._known.get(caller.key) is caller:
            del self._known[caller.key]
        if caller.timer is not None:
            caller.timer.cancel()
        for tell in tuple(caller.on_end):
            tell()
        self._spawn(caller.gateway.close())

    def tell_unavailable(self, error: FirnError) -> None:
        """No broker could be asked about a credential."""
        self._faults.met("reaching", "a broker", f"no broker can be reached, so no HTTP caller can log in: {error}")

    # --- parts --------------------------------------------------------------------------------------------------------

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def _done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # mark it as read: each waiter gets it, too

    def _count(self, outcome: str) -> None:
        text = "Logins of HTTP callers at brokers, by outcome."
        self._registry.counter("firn_http_logins_total", text, outcome=outcome).value += 1


class _Turns:
    """How many logins are under way: of all addresses, and of one."""

    def __init__(self, limits: CallerLimits) -> None:
        self._limits = limits
        self._all = asyncio.Semaphore(limits.logins_max)
        self._by_address: dict[str, tuple[asyncio.Semaphore, int]] = {}

    @asynccontextmanager
    async def turn(self, address: str) -> AsyncIterator[None]:
        """Raises: Refusal after a while."""
        address = network_of(address)
        own, waiting = self._by_address.get(address) or (asyncio.Semaphore(self._limits.logins_per_address_max), 0)
        self._by_address[address] = own, waiting + 1
        try:
            async with _within(own, self._limits.login_wait_s), _within(self._all, self._limits.login_wait_s):
                yield
        finally:
            own, waiting = self._by_address[address]
            if waiting == 1:
                del self._by_address[address]
            else:
                self._by_address[address] = own, waiting - 1


def network_of(address: str) -> str:
    """The network that counts as one address. Of IPv6 it is the first 64 bits, because one machine has all the rest."""
    try:
        found = read_address(address)
    except ValueError:
        return address
    return str(found if found.version == 4 else ip_network((found, 64), strict=False))


@asynccontextmanager
async def _within(semaphore: asyncio.Semaphore, seconds: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout(seconds):
            await semaphore.acquire()
    except TimeoutError:
        raise CallerRefused(BUSY) from None
    try:
        yield
    finally:
        semaphore.release()


def _check_lifetime(dialer: SecureDialer) -> None:
    """Raises: RequestRejected SASL_AUTHENTICATION_FAILED."""
    if dialer.lifetime_s is not None and dialer.lifetime_s < LIFETIME_S_MIN:
        raise RequestRejected(ErrorCode.SASL_AUTHENTICATION_FAILED, "The session has ended.")


async def _shared(task: asyncio.Task[Any]) -> Any:
    """The result or the error of a task for which other requests wait, too."""
    try:
        return await asyncio.shield(task)
    except (FirnError, CallerRefused) as error:
        raise copy_of(error) from None
    finally:
        del task  # an error holds this frame, and the task holds the error
