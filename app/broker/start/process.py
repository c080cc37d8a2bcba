"""The broker as a process: a node on the real machine, its store process beside it, its HTTP process in front.

    broker = Broker(config)
    await broker.start()      # serves when this returns
    await broker.wait()       # until a stop is asked for, or another broker takes over
    await broker.stop()

``serve`` does that for a command line, with the signals. The store process is started before anything else, even before
the modules that a node needs are imported: each takes some tenths of a second, on a core of its own. It and the HTTP process
are watched and started again.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from app import __version__
from app.broker.start.children import broker_child, collector_environment
from app.broker.start.http_address import HTTP_MODULE, check_http_address
from app.broker.start.late_tls import came_too_late
from app.broker.start.running import find_running, forget_running, note_running
from app.broker.start.service import ServiceManager
from app.configs import BrokerConfig
from app.configs.broker import NODE_ID_AUTO, OFF
from app.configs.listeners import SecurityProtocol
from app.configs.topic import Durability
from app.configs.without_effect import set_aside
from app.core.errors import ConfigError, ConflictError, StorageUnavailable
from app.core.faults import Faults, met_bug
from app.core.log_events import Event, Line
from app.core.metrics import Sample
from app.core.notices import in_json, log_line, use_format
from app.core.usage import show_process
from app.machine.files import DirectoryLock, FileSystem, PosixFileSystem, claim_directory, make_private
from app.machine.garbage import ShortCollections
from app.machine.rpc import RpcClient
from app.machine.runtime import SystemClock, ThreadPool, boot_id, boot_s, raise_descriptor_limit, settle_memory
from app.objectstore.location import check_locations

if TYPE_CHECKING:
    from app.broker.node import Node
    from app.broker.quota_tokens import Tokens
    from app.broker.start.cleaning import CleanerProcesses
    from app.http.health import Health
    from app.machine.children import Child
    from app.metadata.peers.liveness import Liveness
    from app.metadata.peers.pulses import Pulses, TurnBoard
    from app.objectstore.proxy import StoreProxy

REDIS_NAMESPACE: Final = "firn"
"""Prefix of Redis keys for all clusters. The id of a data directory distinguishes them."""
STORE_START_S: Final = 30.0
"""Time for the first response of a store process."""
STORE_ASK_S: Final = 0.25
HEALTH_LOOK_S: Final = 1.0
LOCK_WAIT_S: Final = 3.0
"""How long a start waits for the data directory: children of a broker that was just killed may still be ending."""
LOCK_ASK_S: Final = 0.05
SAMPLES_TIMEOUT_S: Final = 2.0
VARIABLE_BYTES_MAX: Final = 128 << 10
"""Linux starts no process with a variable of this size (name, equals sign and value) in its environment."""
TRUST: Final = (
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.truststore.password",
    "ssl.truststore.certificates",
)
"""Settings of a listener that name trusted authorities: the HTTP process recognises the broker by them. The list of revoked
certificates is not among them: it may be of the clients' authority alone, and would then have every other certificate refused."""


def may_create_store(fs: FileSystem, config: BrokerConfig) -> bool:
    """Whether a missing or empty store directory is a new store, and no file system that is not mounted.

    A data directory with an owner knows a store. A data directory that may be lost says nothing about the store.

    Raises: CorruptionError, StorageUnavailable.
    """
    from app.hot.manager import read_meta

    if read_meta(fs, config.data_dir) is not None:
        return False
    return not config.firn_ephemeral or config.store_create


class Broker:
    """A broker process. Belongs to the loop that starts it."""

    def __init__(
        self,
        config: BrokerConfig,
        *,
        log_line: Callable[[str], None] = log_line,
        manager: ServiceManager | None = None,
    ) -> None:
        self.config = config
        self._log_line = log_line
        self._early_faults = Faults(log_line)
        """Used until there is a node, which has its own."""
        self._manager = manager if manager is not None else ServiceManager(None)
        self._rng = random.Random()
        self._pool = ThreadPool()
        self._rpc = RpcClient()
        self._proxy: StoreProxy | None = None
        self._lock: DirectoryLock | None = None
        """Owned here until there is a node, which then owns it."""
        self._store: Child | None = None
        self._http: Child | None = None
        self._http_environment: Mapping[str, str] = {}
        self._http_socket: socket.socket | None = None
        """This end of the pair whose other end the HTTP process has."""
        self._health_told: Health | None = None
        self._cleaners: CleanerProcesses | None = None
        self._node: Node | None = None
        """None until ``start`` makes it."""
        self._running: asyncio.Task[None] | None = None
        self._watching: list[asyncio.Task[None]] = []
        self._informing: asyncio.Task[None] | None = None
        """Reports to the service manager that the loop runs, from the start until all parts have ended."""
        self._drains = False
        self._stop_requested = False
        self.serves = False
        """Whether the start is complete: a stop may come before."""

    @property
    def node(self) -> Node:
        """There once ``start`` has made it."""
        assert self._node is not None, "the broker has not started"
        return self._node

    @property
    def store_url(self) -> str:
        """URL of the store; by default a directory beside the data directory."""
        return self.config.store_url or f"file://{os.path.abspath(self.config.data_dir)}-store"

    @property
    def _answers_from_store(self) -> bool:
        """Whether producers wait for the store unless a topic says something else."""
        return self.config.firn_ephemeral or self.config.topic_defaults.firn_durability is Durability.OBJECT

    @property
    def store_process_id(self) -> int:
        return 0 if self._store is None else self._store.process_id

    async def start(self) -> None:
        """Start all parts. When this returns, requests are served, unless a stop was asked for meanwhile.

        Raises: ConfigError, ConflictError (the data directory is in use), StartRefused, StorageUnavailable, CorruptionError,
        FencedError. ``stop`` must be called then, too.
        """
        check_locations(self.store_url, self.config.wal_store_url)
        self._manager.starting(f"starts on {self.config.data_dir}: reads logs, the cluster log and manifests")
        self._informing = asyncio.create_task(self._manager.run(self._tell_drain))
        fs = PosixFileSystem()
        if not self.config.open:
            from app.broker.security.listener_doors import Doors

            Doors.check(self.config)
        if self.config.firn_cluster_log_key_location or self.config.firn_cluster_log_key_introducing:
            from app.broker.security.log_keys import with_log_keys

            self.config = with_log_keys(self.config)
        if self.config.http_address != OFF:
            self._http_environment = http_environment(self.config)
        self._lock = lock = await claim_when_free(fs, self.config.data_dir)
        if (stays_open := make_private(self.config.data_dir)) is not None:
            self._log_line(Event.LOG_DIRECTORY_PROBLEM.line(stays_open))
        if self.config.http_address != OFF:
            await check_http_address(self.config.http_address)
        self._note_running()
        self._store = broker_child(
            "store",
            lambda descriptor: (
                "app.tiering.store.store_process", "--store", self.store_url, "--socket", str(descriptor),
                *(["--wal-store", self.config.wal_store_url] if self.config.wal_store_url else []),
                *(("--traced",) if self.config.firn_tracing_endpoint else ()),
                *(("--urgent",) if self._answers_from_store else ()),
                *(() if may_create_store(fs, self.config) else ("--existing",)),
            ),
            inherited=[lock.fileno()],
            rng=self._rng,
            log_line=self._log_line,
            connected=self._rpc.connect,
            opens_store=True,
        )  # fmt: skip
        await self._store.start()
        # No client waits for this loop yet, and the store process starts meanwhile.
        from app.broker.composing.local_parts import OWN_DIRECTORY
        from app.broker.composing.node_seams import NodeSeams
        from app.broker.composing.stages import first_error
        from app.broker.node import Node
        from app.broker.peers.control_link import KafkaControlLink
        from app.broker.peers.places import KafkaPlaces
        from app.broker.start.cleaning import CleanerProcesses
        from app.broker.start.node_id import with_node_id
        from app.client.connection import Dialer, dial_tcp
        from app.metadata.changes.features import new_store_level
        from app.objectstore.proxy import StoreProxy
        from app.tiering.store.store_proxy import ProxyStoreWork

        self._cleaners = CleanerProcesses(
            lock.fileno(),
            f"{self.config.data_dir}/{OWN_DIRECTORY}/kernels",
            rng=self._rng,
            log_line=self._log_line,
        )
        self._proxy = store = StoreProxy(self._rpc)
        dial: Dialer = dial_tcp
        if not self.config.open:
            from app.broker.security.listener_doors import inter_broker_dial

            dial = inter_broker_dial(self.config)
        knows_store = self.config.node_id == NODE_ID_AUTO
        if knows_store:
            await self._watch_store(self._store)
            self.config = await with_node_id(
                self.config,
                store=store,
                fs=fs,
                pool=self._pool,
                rng=self._rng,
                clock=SystemClock(),
                link=KafkaControlLink(dial=dial),
                log_line=self._log_line,
                stopping=lambda: self._stop_requested,
            )
        self._node = node = Node(
            self.config,
            NodeSeams(
                clock=SystemClock(),
                rng=self._rng,
                pool=self._pool,
                fs=fs,
                store=store,
                work=ProxyStoreWork(self._rpc),
                log_line=self._log_line,
                lock=lock,
                descriptors_max=raise_descriptor_limit(),
                liveness=self._liveness(),
                store_samples=self._store_samples,
                store_trouble=store.health.trouble,
                boot_s=boot_s,
                places=KafkaPlaces(dial=dial),
                elapsed_s=time.perf_counter,
                new_cleaner_work=self._cleaners.new,
                new_link=lambda: KafkaControlLink(dial=dial),
                start_pulses=self._start_pulses,
                new_tokens=self._quota_tokens if self.config.redis_url is not None else None,
                boot_id=boot_id(),
                new_level=new_store_level(self.config.firn_new_store_level),
            ),
        )
        if self._stop_requested:
            node.request_stop()  # asked for while there was no node to tell
        self._lock = None
        cleaners = self._cleaners
        show_process(node.registry, __version__, others=lambda: [("cleaner", one) for one in cleaners.process_ids])
        try:
            async with asyncio.TaskGroup() as together:
                if not knows_store:
                    together.create_task(self._watch_store(self._store))
                # Its requests to the store wait in the socket, and its work on the disk need not wait.
                together.create_task(node.start())
        except BaseExceptionGroup as failures:
            raise first_error(failures) from None
        ready = asyncio.Event()
        self._running = asyncio.create_task(node.run(ready.set))
        waiting = asyncio.create_task(ready.wait())
        await asyncio.wait([self._running, waiting], return_when=asyncio.FIRST_COMPLETED)
        waiting.cancel()
        if self._running.done():
            await self._running
            if not ready.is_set():
                return  # it was stopped before it was ready
        if self.config.http_address != OFF:
            await self._start_http()
        image = node.cluster.image
        host = self.config.advertised_host or _reachable(self.config.listen_host)
        kafka = f"{host}:{self.config.advertised_port or node.port}"
        local = f"{_reachable(self.config.listen_host)}:{node.port}"
        self._note_running(
            cluster_id=image.cluster_id,
            node_id=self.config.node_id,
            kafka=kafka,
            http=self.config.http_address,
            https=self.config.has_https,
            local=local,
        )
        self._manager.ready(f"serves Kafka at {kafka} as broker {self.config.node_id} of cluster {image.cluster_id}")
        self._log_line(
            Event.BROKER_READY.line(
                f"broker {self.config.node_id} of cluster {image.cluster_id} serves Kafka on "
                f"{self.config.listen_host}:{node.port}, store {self.store_url}, "
                + (f"WAL store {self.config.wal_store_url}, " if self.config.wal_store_url else "")
                + f"HTTP {self.config.http_address}",
                broker_id=int(self.config.node_id),
                cluster_id=image.cluster_id,
                port=node.port,
                store=self.store_url,
            )
        )
        useless = set_aside(self.config)
        if useless is not None:
            self._log_line(Event.SETTINGS_WITHOUT_EFFECT.line(useless))
        self.serves = True

    def _liveness(self) -> Liveness | None:
        """Heartbeats in Redis, if there is one; else as objects."""
        if self.config.redis_url is None:
            return None
        from redis.asyncio import Redis

        from app.metadata.peers.redis_liveness import RedisLiveness

        return RedisLiveness(Redis.from_url(self.config.redis_url), namespace=REDIS_NAMESPACE)

    def _start_pulses(self, board: TurnBoard) -> Pulses:
        """Only in a cluster with another broker (ADR 0023, L6)."""
        from app.broker.peers.control_link import KafkaControlLink
        from app.broker.peers.pulse_thread import PulseThread
        from app.broker.security.listener_doors import inter_broker_dial

        config = self.config
        # The thread reads certificates itself, each time it connects: it shares nothing with this loop's connections.
        return PulseThread(board, lambda: KafkaControlLink(dial=inter_broker_dial(config)), now_s=time.perf_counter)

    def _quota_tokens(self, cluster_id: Callable[[], str]) -> Tokens:
        """Where limits of the whole cluster are leased from."""
        from app.broker.quota_tokens import RedisTokens

        assert self.config.redis_url is not None
        return RedisTokens(self.config.redis_url, namespace=lambda: f"{REDIS_NAMESPACE}:{cluster_id()}")

    async def _watch_store(self, child: Child) -> None:
        """Wait for the first response, and then restart the process whenever it ends. Raises: as ``_await_store``."""
        await self._await_store(child)
        self._watching.append(asyncio.create_task(child.watch()))

    async def _await_store(self, child: Child) -> None:
        """Wait until the store process responds. Raises: ConfigError if it ends instead, StorageUnavailable."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + STORE_START_S
        while loop.time() < deadline:
            try:
                await self._rpc.call("process.ping", b"", timeout_s=STORE_START_S)
            except StorageUnavailable:
                if child.process_id == 0:
                    raise ConfigError(
                        f"The store process could not open {self.store_url}"
                        + (f" and {self.config.wal_store_url}" if self.config.wal_store_url else "")
                        + "; the line above says why."
                    ) from None
                await asyncio.sleep(STORE_ASK_S)
            else:
                return
        raise StorageUnavailable(f"The store process did not respond within {STORE_START_S:.0f} s.")

    async def _start_http(self) -> None:
        """Start the HTTP process. A failure is logged and retried; Kafka is served anyway."""
        listener = self.config.http_listener
        # A certificate names the host that clients use.
        named = listener.protocol.tls and listener.advertised_host
        bootstrap = (
            f"{listener.advertised_host if named else _reachable(listener.host)}:{self.node.ports[listener.name]}"
        )
        self._http = broker_child(
            "http",
            lambda descriptor: (
                HTTP_MODULE, "--bootstrap", bootstrap, "--listen", self.config.http_address,
                "--parent-fd", str(descriptor), *http_options(self.config),
            ),
            inherited=[],
            rng=self._rng,
            log_line=self._log_line,
            connected=self._http_connected,
            environment=self._http_environment,
        )  # fmt: skip
        try:
            await self._http.start()
        except OSError as error:
            self._log_line(Event.PROCESS_START_FAILED.line(f"cannot start the HTTP process: {error}", process="http"))
        self._watching.append(asyncio.create_task(self._http.watch()))
        self._watching.append(asyncio.create_task(self._tell_health()))

    async def _http_connected(self, ours: socket.socket) -> None:
        """The HTTP process has started, perhaps again."""
        if self._http_socket is not None:
            self._http_socket.close()
        ours.setblocking(False)
        self._http_socket, self._health_told = ours, None

    async def _tell_health(self) -> None:
        """Tell the HTTP process this broker's health whenever it changes, until cancelled."""
        while True:
            health = self.node.health()
            if health != self._health_told and self._http_socket is not None:
                try:
                    self._http_socket.send(health.line())  # some hundred bytes: all of them, or none
                except OSError:
                    pass  # it does not read, or it has ended: the next look tells this process, or its successor
                else:
                    self._health_told = health
            await asyncio.sleep(HEALTH_LOOK_S)

    async def _store_samples(self) -> Sequence[Sample]:
        from app.tiering.store.store_process import decode_samples

        return decode_samples(await self._rpc.call("process.metrics", timeout_s=SAMPLES_TIMEOUT_S))

    def tell_bug(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback raised an unexpected exception: a bug of ours. Its connection is closed, and all else continues.

        Clients could cause this repeatedly, so each bug's traceback is shown only once.
        """
        if came_too_late(context):
            return
        if met_bug(self._faults, str(context.get("message")), context.get("exception")):
            loop.default_exception_handler(context)

    @property
    def _faults(self) -> Faults:
        return self._early_faults if self._node is None else self._node.faults

    def _tell_drain(self) -> None:
        """Report a drain to the service manager, and make it wait meanwhile."""
        node = self._node
        drain = node.context.drain.sentence() if node is not None and node.started else None
        if drain:
            self._manager.busy(drain)
        elif self._drains:
            self._manager.serving("serves again: the drain was cancelled")
        self._drains = bool(drain)

    def request_stop(self) -> None:
        """Make ``wait`` return when all admitted requests have their responses."""
        self._manager.stopping("stops: closes its logs")
        self._stop_requested = True
        if self._node is not None:
            self._node.request_stop()

    async def wait(self) -> None:
        """Return after ``request_stop``. Raises: FencedError when another broker has taken over."""
        assert self._running is not None
        await self._running

    async def stop(self) -> None:
        """Stop in order: requests, logs (with the marker of a clean stop), children, threads."""
        self._manager.stopping("stops: closes its logs")
        try:
            await self._stop()
        finally:
            if self._informing is not None:
                self._informing.cancel()
                await asyncio.wait([self._informing])
            self._manager.close()

    async def _stop(self) -> None:
        if self._running is not None and not self._running.done():
            self.node.request_stop()
            await asyncio.wait([self._running])
        if self._running is not None and not self._running.cancelled():
            self._running.exception()  # ``wait`` has told it
        for task in self._watching:
            task.cancel()
        if self._watching:
            await asyncio.wait(self._watching)
        if self._http_socket is not None:
            self._http_socket.close()
        if self._http is not None:
            await self._http.stop()
        if self._cleaners is not None:
            await self._cleaners.stop()
        if self._node is not None:
            await self._node.stop()
        if self._lock is not None:
            self._lock.close()
        if self._proxy is not None:
            await self._proxy.close()
        await self._rpc.close()
        if self._store is not None:
            self._forget_running()  # while the store process still has the lock
            await self._store.stop()
        self._pool.close()

    def _note_running(self, **serves: Any) -> None:
        """Write the file by which `firn stop` and others find this process. A broker with a full disk serves without it."""
        try:
            note_running(self.config.data_dir, **serves)
        except OSError as error:
            self._log_line(
                Event.LOG_DIRECTORY_FAILED.line(
                    f"`firn stop` will not find this broker: cannot write into {self.config.data_dir}: {error}"
                )
            )

    def _forget_running(self) -> None:
        try:
            forget_running(self.config.data_dir)
        except OSError as error:
            self._log_line(
                Event.LOG_DIRECTORY_FAILED.line(
                    f"cannot remove the file that names this process from {self.config.data_dir}: {error}"
                )
            )


async def claim_when_free(fs: FileSystem, directory: str, wait_s: float = LOCK_WAIT_S) -> DirectoryLock:
    """``claim_directory``, repeated for ``wait_s`` while another process has the lock. Raises: as it does."""
    loop = asyncio.get_running_loop()
    deadline_s = loop.time() + wait_s
    while True:
        try:
            return claim_directory(fs, directory)
        except ConflictError as error:
            if loop.time() >= deadline_s:
                holder = find_running(directory)
                sentence = str(error)
                if holder is not None:
                    sentence = f"{directory} is in use by a broker, process {holder.process_id}; `firn stop` ends it."
                raise ConflictError(f"{sentence} The start waited {wait_s:g} s for that.") from None
        await asyncio.sleep(LOCK_ASK_S)


def http_options(config: BrokerConfig) -> Sequence[str]:
    """The flags of the HTTP process. None of them is a secret: ``http_environment`` has those."""
    named = (config.http_listener.advertised_host, config.advertised_host, config.listen_host)
    hosts = dict.fromkeys([*named, *sorted(config.firn_http_allowed_hosts)])
    return (
        *(["--anonymous"] if config.firn_http_anonymous_enable else []),
        *(["--plain-credentials"] if config.firn_http_plain_credentials_enable else []),
        *([f"--console-mask={','.join(sorted(config.firn_console_mask))}"] if config.firn_console_mask else []),
        *(["--console-read-only"] if config.firn_console_read_only else []),
        *(["--name-callers"] if config.firn_trusted_proxies else []),
        f"--trusted-proxies={','.join(sorted(config.firn_http_trusted_proxies))}",
        f"--forwarded-header={config.firn_http_forwarded_header}",
        f"--http-allowed-hosts={','.join(filter(None, hosts))}",
        f"--http-allowed-origins={','.join(sorted(config.firn_http_allowed_origins))}",
        f"--max-connections={config.firn_http_max_connections}",
        f"--header-timeout-ms={config.firn_http_header_timeout_ms}",
        f"--body-timeout-ms={config.firn_http_body_timeout_ms}",
        f"--instance-timeout-ms={config.firn_http_consumer_instance_timeout_ms}",
        *(_tracing_options(config) if config.firn_tracing_endpoint else []),
        *([f"--processes={config.firn_http_processes}"] if config.firn_http_processes > 1 else []),
    )


def _tracing_options(config: BrokerConfig) -> Sequence[str]:
    return (
        f"--tracing-endpoint={config.firn_tracing_endpoint}",
        f"--tracing-sample-ratio={config.firn_tracing_sample_ratio}",
        f"--tracing-instance={config.node_id}",
    )


def http_client(config: BrokerConfig) -> Mapping[str, str]:
    """The client settings by which the HTTP process reaches its listener, beside the settings in its file. They include secrets."""
    listener = config.http_listener
    if listener.protocol is SecurityProtocol.PLAINTEXT:
        return {}
    found = {"security.protocol": listener.protocol.value}
    if listener.protocol.tls and not config.firn_http_client_config:
        found |= {name: text for name in TRUST if (text := listener.text(name))}
    return found


def http_environment(config: BrokerConfig) -> Mapping[str, str]:
    """The settings that the HTTP process is handed by its environment, secrets among them. Files are looked at.

    Raises: ConfigError, if the HTTP process could not start with these settings.
    """
    from app.http import tls_settings
    from app.http.access import check_rights

    found: dict[str, str] = {}
    texts = tls_settings.texts_of(config)
    tls = tls_settings.read_tls(texts)
    if tls is not None:
        from app.machine.certificates import Certificates

        Certificates(tls, server=True)
        found |= tls_settings.to_environment(texts)
    client, file = http_client(config), config.firn_http_client_config
    if client or file:
        from app.client.security import Reach, client_security, read_settings, to_environment

        found |= to_environment(client, file)
        given = read_settings({}, file) if file else {}
        listener = config.http_listener
        protocol = given.get("security.protocol", listener.protocol).upper()
        if protocol != listener.protocol:
            raise ConfigError(
                f"{file} (firn.http.client.config) says security.protocol={protocol}, but the HTTP process uses listener "
                f"{listener.name}, which has {listener.protocol}: take the line out."
            )
        security = client_security({**client, **given}, needs_user=config.firn_http_anonymous_enable)
        check_rights(by_certificate=security.by_certificate, anonymous=config.firn_http_anonymous_enable)
        Reach(security.tls)
    if config.firn_tracing_endpoint:
        found |= collector_environment(os.environ)
    for name, text in found.items():
        if len(os.fsencode(f"{name}={text}")) >= VARIABLE_BYTES_MAX:
            raise ConfigError(
                f"{name} of the HTTP process would have {len(text)} characters, and the system allows no variable of "
                f"{VARIABLE_BYTES_MAX} bytes: write the certificates into a file and name that."
            )
    return found


def _reachable(host: str) -> str:
    """An address of this machine that can be connected to, if ``host`` means all addresses."""
    return {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)


def _asked_to_stop(broker: Broker, number: signal.Signals) -> None:
    broker.request_stop()
    _tell(Event.BROKER_STOPPING.line(f"the broker stops: {number.name}", signal=number.name))


async def _serve(config: BrokerConfig, on_ready: Callable[[Broker], None] | None) -> None:
    loop = asyncio.get_running_loop()
    broker = Broker(config, manager=ServiceManager.of_environment(os.environ, os.getpid()))
    loop.set_exception_handler(broker.tell_bug)
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, _asked_to_stop, broker, number)
    watch = None
    collections = ShortCollections(loop.call_soon_threadsafe)
    try:
        gc.disable()  # objects of the start-up stay
        await broker.start()
        settle_memory(collections)
        watch = broker.node.watch_loop()
        if on_ready is not None and broker.serves:
            on_ready(broker)
        await broker.wait()
    finally:
        collections.end()
        if watch is not None:
            watch.stop()
        await broker.stop()


def serve(config: BrokerConfig, *, on_ready: Callable[[Broker], None] | None = None) -> None:
    """Run a broker until SIGINT or SIGTERM.

    Raises: as ``Broker.start``, and FencedError when another broker has taken over. Each message is one sentence.
    """
    import uvloop

    use_format(config.firn_log_format)
    _tell(Event.BROKER_STARTING.line(f"Firn {__version__} starts on {config.data_dir}", version=__version__))
    uvloop.run(_serve(config, on_ready))
    _tell(Event.BROKER_STOPPED.line("the broker has stopped"))


def _tell(line: Line) -> None:
    """A line about the process for programs. A person at a terminal sees the command and its prompt."""
    if in_json():
        log_line(line)
