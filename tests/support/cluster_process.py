"""A broker of a cluster in a process of its own, to be killed, stopped, cut off and started again.

    python -m tests.support.cluster_process PATH NODE_ID PORT ['{"links": {…}, "redis": "redis://…", "settings": {…},
        "properties": "…", "patience_ms": 2000, "account": "…", "boots": 1}']

The bucket is the directory ``PATH/store``, the broker's data ``PATH/broker-<id>/data``. While the file ``PATH/no-bucket-<id>``
exists, this broker cannot reach the bucket. ``links`` is where it reaches the other brokers instead of their own ports.
``properties`` is a file of settings as for ``firn serve``. ``patience_ms`` is how long it waits for another broker to accept a
connection, and to answer a sign of life. ``account`` is where it notes what a loss of power would take (``tests.support.power``),
and ``boots`` counts the losses of power of its machine, each of which gives it another boot id. SIGTERM stops it in order. It
prints ``ready`` when it serves, and its notices.
"""

from __future__ import annotations

import asyncio
import json
import random
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from redis.asyncio import Redis

from app.broker.peers import control_link
from app.broker.peers.control_link import KafkaControlLink
from app.broker.peers.places import KafkaPlaces
from app.broker.peers.pulse_thread import PulseThread
from app.broker.quota_tokens import RedisTokens
from app.broker.security.listener_doors import inter_broker_dial
from app.broker.security.log_keys import with_log_keys
from app.broker.start.late_tls import came_too_late
from app.client.connection import Dialer, KafkaConnection, dial_tcp
from app.configs import BrokerConfig, InternalDurability
from app.core.errors import StorageUnavailable
from app.machine.runtime import ThreadPool, boot_id
from app.metadata.image.records import LEVEL_MAX
from app.metadata.peers.liveness import Liveness
from app.metadata.peers.redis_liveness import RedisLiveness
from app.objectstore.directory import DirectoryStore
from app.settings import load
from tests.support.broker import running_broker
from tests.support.power import AccountedFileSystem

T = TypeVar("T")
SYNC_S_MAX: Final = 0.01
"""Of a broker whose machine may lose its power."""


class CutPool:
    """A BlockingPool for a bucket that cannot be reached while a file exists."""

    def __init__(self, pool: ThreadPool, cut: Path) -> None:
        self._pool = pool
        self._cut = cut

    async def run(self, work: Callable[[], T]) -> T:
        if self._cut.exists():
            raise StorageUnavailable("the bucket is cut off")
        done = await self._pool.run(work)
        if self._cut.exists():
            raise StorageUnavailable("the bucket was cut off before it answered")
        return done


class ThroughLinks:
    """A dialer that reaches other brokers where the links are."""

    def __init__(self, links: Mapping[str, int], dial: Dialer) -> None:
        self._links = links
        self._dial = dial

    async def __call__(self, protocol: Callable[[], asyncio.BufferedProtocol], host: str, port: int) -> None:
        await self._dial(protocol, host, self._links.get(str(port), port))


class LoggingIn(ThroughLinks):
    """The same for one that logs in."""

    async def login(self, connection: KafkaConnection) -> float | None:
        found: float | None = await self._dial.login(connection)  # type: ignore[attr-defined]
        return found


def settings_of(path: str) -> BrokerConfig:
    """From a file, as `firn serve` has them."""
    config = load(config_path=Path(path)).broker
    return with_log_keys(config)


def given(config: BrokerConfig) -> dict[str, Any]:
    """What is not at its default, but for what each broker of a test has anyway."""
    plain = BrokerConfig()
    found = {one.name: getattr(config, one.name) for one in fields(config)}
    own = {"node_id", "data_dir", "store_url", "listen_host", "listen_port", "http_address", "topic_defaults"}
    return {name: value for name, value in found.items() if name not in own and value != getattr(plain, name)}


def redis_liveness(url: str) -> Liveness:
    """As of ``firn serve --redis``."""
    return RedisLiveness(Redis.from_url(url), namespace="firn")


def quota_tokens(url: str, cluster_id: Callable[[], str]) -> RedisTokens:
    """As of ``firn serve --redis``."""
    return RedisTokens(url, namespace=lambda: f"firn:{cluster_id()}")


def tell_bug(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
    """Print a traceback, which no test lets pass, unless it is none of ours: as ``firn serve``."""
    if not came_too_late(context):
        loop.default_exception_handler(context)


def hold(seconds: Path) -> None:
    """Block the loop for as long as a file says; other threads go on."""
    time.sleep(float(seconds.read_text()))


async def serve(path: Path, node_id: int, port: int, more: Mapping[str, Any]) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(tell_bug)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    if "patience_ms" in more:
        control_link.BEAT_MS = control_link.CONNECT_MS = more["patience_ms"]  # type: ignore[misc]
    settings = dict(more.get("settings", {}))
    if "firn_internal_durability" in settings:
        settings["firn_internal_durability"] = InternalDurability(settings["firn_internal_durability"])
    pool = ThreadPool(4)
    store = DirectoryStore(path / "store", CutPool(pool, path / f"no-bucket-{node_id}"))
    await store.open()
    links = more.get("links", {})
    new_dial: Callable[[], Dialer] = lambda: ThroughLinks(links, dial_tcp)  # noqa: E731
    around: dict[str, Any] = {}
    redis = more.get("redis")
    if settings.get("firn_quota_scope") == "cluster":
        around["new_tokens"] = partial(quota_tokens, redis)
    if "properties" in more:
        config = settings_of(more["properties"])

        def new_dial() -> Dialer:
            secure = inter_broker_dial(config)
            return (LoggingIn if hasattr(secure, "login") else ThroughLinks)(links, secure)

        redis = config.redis_url
        around = given(config) | {"places": KafkaPlaces(dial=new_dial()), "new_level": LEVEL_MAX}
        if redis is not None:
            around["new_tokens"] = partial(quota_tokens, redis)
    loop.add_signal_handler(signal.SIGUSR1, partial(hold, path / f"hold-{node_id}"))
    async with running_broker(
        path / f"broker-{node_id}",
        store=store,
        rng=random.Random(),
        boot_id=f"{boot_id()}-{more.get('boots', 0)}",
        fs=AccountedFileSystem(Path(more["account"]), sync_s_max=SYNC_S_MAX) if "account" in more else None,
        new_link=partial(KafkaControlLink, dial=new_dial()),
        start_pulses=lambda board: PulseThread(
            board, lambda: KafkaControlLink(dial=new_dial()), now_s=time.perf_counter
        ),
        node_id=node_id,
        listen_port=port,
        log_line=lambda line: print(f"{time.time():.2f} {line}", flush=True),
        liveness=redis_liveness(redis) if redis is not None else None,
        **({"new_level": 1} | around | settings),
    ) as broker:
        print("ready", flush=True)
        fenced = asyncio.create_task(broker.ended.wait())
        await asyncio.wait([fenced, asyncio.create_task(stopped.wait())], return_when=asyncio.FIRST_COMPLETED)
    pool.close()


if __name__ == "__main__":
    import uvloop

    uvloop.run(
        serve(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), json.loads(sys.argv[4]) if sys.argv[4:] else {})
    )
