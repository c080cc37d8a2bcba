"""The consumer instances of a process: found by owner, group and id; bounded; ended when idle, or with their caller's credential.

The owner of an instance is the ``Gateway`` of the caller that created it: the connections that are logged in with its credential.
So no look-up can find an instance of another caller.

Tests: ``tests/http/consumers/test_table.py``, ``tests/http/rest_v2/test_callers_of_instances.py``.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Final, NamedTuple, Self

from app.core.limits import HTTP_INSTANCE_TIMEOUT_MS
from app.core.metrics import Registry
from app.core.turns import Portion
from app.http.consumers.instance import ConsumerInstance, instance_not_found
from app.http.consumers.names import generated_id
from app.http.consumers.settings import InstanceSettings
from app.http.errors import RestError
from app.http.gateway import Gateway

if TYPE_CHECKING:
    from app.http.callers import HttpCaller

INSTANCES_MAX: Final = 2_000
INSTANCES_OF_CALLER_MAX: Final = 1_000
PARTITIONS_OF_ALL_MAX: Final = 200_000
EXISTS: Final = 40902
TOO_MANY: Final = 42901
CLOSING_AT_ONCE: Final = 50
CLOSING_TIMEOUT_S: Final = 2.0
"""At the end of the process. Coordinators end the sessions of members that could not say it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceLimits:
    instances_max: int = INSTANCES_MAX
    of_caller_max: int = INSTANCES_OF_CALLER_MAX
    partitions_max: int = PARTITIONS_OF_ALL_MAX
    idle_timeout_ms: int = HTTP_INSTANCE_TIMEOUT_MS


class InstanceKey(NamedTuple):
    owner: Gateway
    group: str
    instance_id: str


@dataclass(slots=True, eq=False)
class _Kept:
    """An instance in the table."""

    instance: ConsumerInstance
    caller: HttpCaller | None
    credential_ended: Callable[[], None]
    used_s: float


class ConsumerInstances:
    """All of a process. ``async with`` ends them."""

    def __init__(self, limits: InstanceLimits, *, registry: Registry, process: int = 0) -> None:
        """``process``: the index of this process among those that share its port."""
        self._limits = limits
        self._process = process
        self._kept: dict[InstanceKey, _Kept] = {}
        self._idle: OrderedDict[InstanceKey, _Kept] = OrderedDict()
        """Those without a request under way, the one that was used longest ago first."""
        self._of_owner: Counter[Gateway] = Counter()
        self._partitions: Counter[ConsumerInstance] = Counter()
        self._partitions_total = 0
        self._closing: set[asyncio.Task[None]] = set()
        self._places = asyncio.Semaphore(CLOSING_AT_ONCE)
        self._sweeping: asyncio.Task[None] | None = None
        text = "Consumer instances of REST v2 in this process."
        registry.gauge("firn_http_consumer_instances", text, lambda: [((), float(len(self._kept)))])
        self._expired = registry.counter(
            "firn_http_consumer_instances_expired_total",
            "Consumer instances of REST v2 that ended because they were idle.",
        )

    async def __aenter__(self) -> Self:
        self._sweeping = asyncio.create_task(self._sweep(), name="consumer instances")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.gather(self._sweeping, return_exceptions=True)
        for key in tuple(self._kept):
            self._end(key, commit=False)
        if self._closing:
            await asyncio.wait(self._closing, timeout=CLOSING_TIMEOUT_S)
        for task in tuple(self._closing):
            task.cancel()
        await asyncio.gather(*self._closing, return_exceptions=True)

    def __len__(self) -> int:
        return len(self._kept)

    def __iter__(self) -> Iterator[ConsumerInstance]:
        return iter([kept.instance for kept in self._kept.values()])

    # --- requests -----------------------------------------------------------------------------------------------------

    def create(
        self, gateway: Gateway, caller: HttpCaller | None, group: str, name: str | None, settings: InstanceSettings
    ) -> ConsumerInstance:
        """A new instance. ``caller``: whose credential keeps it, None without logins.

        Raises: RestError 409 with 40902 if this caller has one of that name, 429 if there are too many.
        """
        instance_id = generated_id(self._process, secrets.token_hex(12)) if name is None else name
        key = InstanceKey(gateway, group, instance_id)
        if key in self._kept:
            raise RestError(
                409,
                f"Consumer instance {instance_id!r} exists in group {group[:200]!r}. Delete it, or choose another name.",
                error_code=EXISTS,
            )
        limits = self._limits
        if self._of_owner[gateway] >= limits.of_caller_max or len(self._kept) >= limits.instances_max:
            raise RestError(
                429, "There are too many consumer instances. Delete some, or try again later.", error_code=TOO_MANY
            )
        instance = ConsumerInstance(gateway, group, instance_id, settings, room=self._room)

        def credential_ended() -> None:
            self._end(key, commit=False)

        kept = _Kept(instance, caller, credential_ended, asyncio.get_running_loop().time())
        self._kept[key] = self._idle[key] = kept
        self._of_owner[gateway] += 1
        if caller is not None:
            caller.instances += 1
            caller.on_end.add(credential_ended)
        return instance

    @contextmanager
    def using(self, gateway: Gateway, group: str, instance_id: str) -> Iterator[ConsumerInstance]:
        """An instance of this caller, which does not expire within the block. Raises: RestError 404 with 40403."""
        key = InstanceKey(gateway, group, instance_id)
        kept = self._kept.get(key)
        if kept is None:
            raise instance_not_found(group, instance_id)
        instance = kept.instance
        instance.requests += 1
        self._idle.pop(key, None)
        try:
            yield instance
        finally:
            instance.requests -= 1
            if not instance.requests and self._kept.get(key) is kept:
                kept.used_s = asyncio.get_running_loop().time()
                self._idle[key] = kept

    async def delete(self, gateway: Gateway, group: str, instance_id: str) -> None:
        """End an instance. With auto commit, the records that it has delivered are committed. Raises: RestError 404 with 40403."""
        key = InstanceKey(gateway, group, instance_id)
        if key not in self._kept:
            raise instance_not_found(group, instance_id)
        await asyncio.shield(self._end(key, commit=True))

    # --- bounds -------------------------------------------------------------------------------------------------------

    def _room(self, instance: ConsumerInstance, count: int) -> bool:
        total = self._partitions_total - self._partitions[instance] + count
        if total > self._limits.partitions_max:
            return False
        self._partitions_total = total
        self._partitions[instance] = count
        return True

    # --- ends ---------------------------------------------------------------------------------------------------------

    async def _sweep(self) -> None:
        loop = asyncio.get_running_loop()
        timeout_s = self._limits.idle_timeout_ms / 1000
        while True:
            pause_s = timeout_s
            portion = Portion()
            while self._idle:
                key, kept = next(iter(self._idle.items()))
                left_s = kept.used_s + timeout_s - loop.time()
                if left_s > 0:
                    pause_s = left_s
                    break
                self._expired.value += 1
                self._end(key, commit=False)
                await portion.rest_if_spent()
            await asyncio.sleep(pause_s)

    def _end(self, key: InstanceKey, *, commit: bool) -> asyncio.Task[None]:
        kept = self._kept.pop(key)
        self._idle.pop(key, None)
        instance = kept.instance
        self._of_owner[key.owner] -= 1
        if not self._of_owner[key.owner]:
            del self._of_owner[key.owner]
        if kept.caller is not None:
            kept.caller.on_end.discard(kept.credential_ended)
            kept.caller.instances -= 1
        task = asyncio.create_task(self._close(instance, commit=commit))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return task

    async def _close(self, instance: ConsumerInstance, *, commit: bool) -> None:
        async with self._places:
            await instance.close(commit=commit)
        self._partitions_total -= self._partitions.pop(instance, 0)
