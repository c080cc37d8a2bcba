"""The caller of a connection, and the rights that decide which requests it may make.

A connection has one caller at a time. The fast paths of Produce and Fetch remember decisions that were made once. These decisions
belong to the caller's ``Rights``, so a decision that was made under other rights is never found.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol
from weakref import WeakValueDictionary

from app.core.buckets import NO_LIMIT, Bucket
from app.wire.apikeys import ApiKey

ANONYMOUS: Final = "User:ANONYMOUS"
"""The principal of a connection that has not authenticated, as Kafka names it."""
PLAINTEXT: Final = "PLAINTEXT"
"""The name of the only listener, as Kafka names it by default."""


class Rights:
    """Stands for the principal, the credential and the present rules, which together decide about a caller's requests. Compared by
    identity: two requests with the same object are allowed the same."""

    __slots__ = ("__weakref__", "on_end", "principal", "valid")

    def __init__(self, principal: str) -> None:
        self.principal = principal
        self.valid = True
        """Whether the rules and the credential are unchanged. Once it is False, connections ask for new rights."""
        self.on_end: set[Callable[[], None]] = set()
        """Called once when the rights end: parked requests must be authorised again."""

    def end(self) -> None:
        """The rules or the credential have changed."""
        self.valid = False
        for tell in tuple(self.on_end):
            tell()


class KnownRights:
    """The rights of all connected callers: one object for each principal or, where rules name hosts, for each principal and host.
    Decisions that were remembered for one connection count for the others with the same object."""

    def __init__(self, *, by_host: bool = False) -> None:
        """``by_host``: whether a principal's rights depend on its host."""
        self._by_host = by_host
        self._known: WeakValueDictionary[tuple[str, str], Rights] = WeakValueDictionary()

    def of(self, principal: str, host: str) -> Rights:
        """The rights of a principal that is connected from ``host``, as they are now."""
        key = (principal, host if self._by_host else "")
        rights = self._known.get(key)
        if rights is None or not rights.valid:
            rights = self._known[key] = Rights(principal)
        return rights

    def end(self) -> None:
        """The rules have changed: all connections have to ask for new rights."""
        known = list(self._known.values())
        self._known.clear()
        for rights in known:
            rights.end()


@dataclass(frozen=True, slots=True)
class Caller:
    """The principal on a connection, its address, and its login."""

    rights: Rights
    listener: str = PLAINTEXT
    """The name of the listener that was connected to."""
    host: str = ""
    """Address of the other end."""
    port: int = 0
    expires_s: float = math.inf
    """Loop time at which the session ends unless the client authenticates again (KIP-368)."""
    by_token: bool = False
    """Whether the client has logged in with a delegation token."""
    via: str = ""
    """The address of the proxy that has named ``host``; empty if the connection comes from ``host`` itself."""

    @property
    def principal(self) -> str:
        """``Type:name``."""
        return self.rights.principal


class Doorkeeper(Protocol):
    """Names the caller of a connection."""

    def admit(self, listener: str, host: str, port: int) -> Caller:
        """The caller of a new connection."""
        ...

    def forwarded(self, caller: Caller, host: str) -> Caller:
        """The same connection, which a proxy made for a client at ``host``. No login has happened yet."""
        ...

    def authenticated(self, caller: Caller, principal: str, expires_s: float, *, by_token: bool = False) -> Caller:
        """The same connection, whose client has authenticated as ``principal``. ``expires_s``: loop time at which the session ends.
        ``by_token``: whether it authenticated with a delegation token."""
        ...

    def renew(self, caller: Caller) -> Caller:
        """The same caller under the present rules. Called once its rights are not valid any more."""
        ...


class OpenDoor:
    """All callers are anonymous: no listener authenticates clients."""

    def __init__(self, known: KnownRights | None = None) -> None:
        self._known = known if known is not None else KnownRights()

    def authenticated(self, caller: Caller, principal: str, expires_s: float, *, by_token: bool = False) -> Caller:
        rights = self._known.of(principal, caller.host)
        return Caller(rights, caller.listener, caller.host, caller.port, expires_s, by_token, caller.via)

    def admit(self, listener: str, host: str, port: int) -> Caller:
        return Caller(self._known.of(ANONYMOUS, host), listener, host, port)

    def forwarded(self, caller: Caller, host: str) -> Caller:
        return Caller(self._known.of(ANONYMOUS, host), caller.listener, host, caller.port, via=caller.host)

    def renew(self, caller: Caller) -> Caller:
        rights = self._known.of(caller.principal, caller.host)
        return Caller(rights, caller.listener, caller.host, caller.port, caller.expires_s, caller.by_token, caller.via)


class Shares:
    """The buckets of one user with one client id. Looked up once, and valid as long as the quotas have the same ``terms``."""

    __slots__ = ("cold", "fetched", "mutations", "produced", "terms", "time")

    def __init__(
        self,
        terms: object,
        produced: Bucket = NO_LIMIT,
        fetched: Bucket = NO_LIMIT,
        cold: Bucket = NO_LIMIT,
        time: Bucket = NO_LIMIT,
        mutations: Bucket = NO_LIMIT,
    ) -> None:
        self.terms = terms
        """The ``terms`` of the quotas (``ClientQuotas.terms``) under which the buckets were found."""
        self.produced = produced
        self.fetched = fetched
        self.cold = cold
        self.time = time
        """Seconds of the broker's loop."""
        self.mutations = mutations


UNKNOWN: Final = Shares(object())
"""The shares of a client that have not been looked up."""


class Remembers(Protocol):
    """Stands for requests of one kind, all of the same user and client id, and remembers the client's shares."""

    client_id: str | None
    shares: Shares


class Quotas:
    """Decides how long clients wait that take more than their share (KIP-13, KIP-219). This class has no limits."""

    terms: object = object()
    """A new object each time that remembered shares may be out of date."""
    producing: Shares | None = None
    """The shares of the client that has produced since ``begin`` and since the last charge, looked up under the present ``terms``;
    None if there is none. The time since then is still to be charged to them."""
    now_s: Callable[[], float]
    """The clock of ``share_out``. There is one if time counts."""
    counts_time: bool = False
    """Whether there is a limit of time. Without one there need be no ``begin`` and no ``end``."""

    def begin(self) -> None:
        """From now on requests are served, one after the other. The time until ``end`` is charged to their clients."""

    def end(self) -> None:
        """No request is served until the next ``begin``."""

    def share_out(self, shares: Sequence[Shares | None], seconds: float) -> None:
        """Charge ``seconds`` to clients with these shares, whose requests were served together. The requests belong to no call
        between ``begin`` and ``end``."""

    def charge(self, caller: Caller, client_id: str | None, api_key: int, size_bytes: int) -> int:
        """Charge a client for ``size_bytes``: of records that it has sent (Produce) or was sent (Fetch), or of another request. The
        time since ``begin`` or the last call is charged to the client, too.

        Returns: the throttle time in milliseconds, which the response tells; the connection is not read for so long.
        """
        return 0

    def produced(self, caller: Caller, client_id: str | None, size_bytes: int) -> int:
        """As ``charge``, for a Produce request of ``size_bytes``. Its time may be charged with the client's next request."""
        return self.charge(caller, client_id, int(ApiKey.PRODUCE), size_bytes)

    def produced_alike(self, caller: Caller, kind: Remembers, size_bytes: int) -> int:
        """As ``produced``, for a request of a kind that only clients with the ``caller``'s principal send.

        A caller may skip this and take the bytes from ``produced.ahead`` itself if three things hold: ``producing`` are the shares
        of the kind (or None, and these are of the present ``terms``), no time is owed, and so many bytes were taken ahead.
        """
        return self.produced(caller, kind.client_id, size_bytes)

    def spent(self, caller: Caller, client_id: str | None) -> None:
        """Charge the time since ``begin`` or the last call to the client. It waits for that with its next request."""

    def between_calls_s(self) -> float:
        """A clock that stands still from ``begin`` to the last time that is charged before ``end``. There is one if time counts."""
        return 0.0

    def stepped(self, caller: Caller, client_id: str | None, api_key: int, seconds: float) -> None:
        """Charge a step of a request that is a task: ``seconds`` by ``between_calls_s``. The client waits for that with its next
        request."""

    def read_cold(self, caller: Caller, client_id: str | None, size_bytes: int) -> int:
        """Charge a client for ``size_bytes`` that it was sent from the object store. Returns: as ``charge``."""
        return 0

    def fetch_bytes_max(self, caller: Caller, client_id: str | None) -> int | None:
        """The most that one Fetch should bring, so that no answer is followed by a long wait; None without a limit."""
        return None

    def mutate(self, caller: Caller, client_id: str | None, partitions: int, *, strict: bool) -> int:
        """Charge a client that creates or deletes ``partitions`` partitions (KIP-599). Returns: the throttle time in milliseconds.

        Raises: RequestRejected THROTTLING_QUOTA_EXCEEDED with ``strict``, and the client is in debt already.
        """
        return 0

    def connected(self, address: str) -> float:
        """A client connects from ``address``. Returns: the seconds after which its connection is closed; 0 if it may stay."""
        return 0.0
