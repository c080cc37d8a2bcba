"""One broker, composed of its parts inside one event loop, with any implementation of the seams.

``Broker`` (``start/process.py``) runs a ``Node`` with the machine's clock, disk and a store process; tests and the simulation run
it with others. The parts come into being in stages (``composing/``), and nothing is served before all of them have started::

    lock → check the owner of the directory → open the logs, list the manifests, register in the cluster log: all at once →
    compare every led log with its manifest → raise leader epochs if records may be lost → listen

``stop`` ends what has begun, the newest first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from app.broker.composing.cluster_parts import ClusterParts, load, new_cluster_parts
from app.broker.composing.listening import Addresses
from app.broker.composing.local_parts import claim, new_local_parts, open_directory
from app.broker.composing.node_seams import NodeLink, NodeSeams
from app.broker.composing.serving_parts import ServingParts, new_serving_parts
from app.broker.composing.stages import Background, Run, Stops, first_error
from app.broker.partitions.left_behind import tell_what_stays_behind
from app.broker.partitions.partitions import Partitions
from app.broker.watching.health import judge
from app.broker.watching.stall_lines import watch_stalls
from app.configs import BrokerConfig
from app.core.errors import FencedError, FirnError, clause, copy_of
from app.core.faults import Faults
from app.core.log_events import Event
from app.core.metrics import Registry
from app.core.units import BrokerId, TopicIdPartition
from app.handlers.base.context import Context
from app.handlers.serving.server import KafkaServer
from app.hot.checkpoints import MetaProperties
from app.hot.log import PartitionLog
from app.hot.manager import LoadReport, LogManager
from app.hot.unreadable import UnreadableBatch
from app.metadata.image.records import Endpoint
from app.metadata.membership.member import ClusterMember
from app.metadata.membership.membership import Membership
from app.metadata.view.view import ClusterView
from app.security.delegation import TokenSecrets
from app.tiering.read.chunk_cache import ChunkCache
from app.tiering.read.reader import RemoteReader
from app.tiering.upload.remote_log_manager import RemoteLogManager

if TYPE_CHECKING:
    from app.broker.partitions.tier_views import TierViews
    from app.broker.replication.followers import Followers
    from app.broker.security.broker_audit import BrokerAudit
    from app.broker.security.listener_doors import Doors
    from app.broker.spending import Spending
    from app.broker.watching.loop_watch import LoopWatch
    from app.broker.watching.traced_work import Tracing
    from app.broker.write_ahead.write_ahead import WriteAhead
    from app.exactly_once.coordinator import RequestCoordinator
    from app.groups.share.share_coordinator import ShareCoordinator
    from app.http.health import Health
    from app.schemas.follower import SchemaFollower
    from app.transactions.coordinator import TransactionCoordinator

LEAD_S: Final = 10.0
"""So long a broker that is alone waits to lead again before it counts as ready: it serves meanwhile."""


class Node:
    """A broker inside one loop. ``start``, then ``run`` until it returns or is cancelled, then ``stop``."""

    def __init__(self, config: BrokerConfig, around: NodeSeams) -> None:
        self.config = config
        self.registry = Registry()
        self._log_line = around.log_line
        self.faults = Faults(around.log_line)
        self._tracing: Tracing | None = None
        """None without ``firn.tracing.endpoint``."""
        if config.firn_tracing_endpoint:
            from app.broker.watching.traced_work import TracedWork, Tracing

            self._tracing = Tracing(
                config,
                rng=around.rng,
                clock=around.clock,
                elapsed_s=around.elapsed_s,
                registry=self.registry,
                faults=self.faults,
            )
            around = replace(around, work=TracedWork(around.work, self._tracing.tracer))
        self._around = around
        self._stopping = asyncio.Event()
        self._fenced: FencedError | None = None
        self._addresses = Addresses(config)
        self._background = Background()
        self._stops = Stops()
        self._stops.begun(self._close_logs)  # it may have the lock already
        self._local = new_local_parts(
            config,
            around,
            self.registry,
            self.faults,
            on_offline=self._on_offline,
            on_unreadable=self._note_unreadable,
        )
        self._cluster_parts: ClusterParts | None = None
        """None until the data directory is claimed."""
        self.load_report: LoadReport | None = None
        """None until the logs are open, and this broker is registered if it is alone."""
        self._serving_parts: ServingParts | None = None
        """None until all parts are made."""
        self._leads = False
        """Whether leader epochs have risen where records may be lost."""
        key = config.delegation_token_secret_key
        self._token_secrets = TokenSecrets(key) if key else None
        self.audit: BrokerAudit | None = None
        """None if there are no rights to check, no logins, and nothing is written."""
        self._doors: Doors | None = None
        """The authentication of listeners that are not plain; None if there are none."""
        self.registry.gauge(
            "firn_offline_partitions", "Partitions that this broker should lead but cannot open", self._count_offline
        )
        self.registry.gauge(
            "firn_broker_isolated",
            "Whether this broker is isolated, and refuses clients what other brokers may lead by now",
            self._is_isolated,
        )
        self.registry.gauge("firn_ready", "Whether this broker can serve something of what it leads", self._show_ready)
        if self._around.store_trouble is not None:
            self.registry.gauge("firn_store_responds", "Whether the object store responds", self._show_store)

    # --- the parts -----------------------------------------------------------------------------------------------

    @property
    def claimed(self) -> bool:
        """Whether the data directory is claimed, so that the membership is there."""
        return self._cluster_parts is not None

    @property
    def started(self) -> bool:
        """Whether all parts are there."""
        return self._serving_parts is not None

    @property
    def _cluster(self) -> ClusterParts:
        assert self._cluster_parts is not None, "the node has not claimed its data directory"
        return self._cluster_parts

    @property
    def _serving(self) -> ServingParts:
        assert self._serving_parts is not None, "the node has not started"
        return self._serving_parts

    @property
    def logs(self) -> LogManager:
        return self._local.logs

    @property
    def remote_log_manager(self) -> RemoteLogManager:
        return self._local.remote_log_manager

    @property
    def chunk_cache(self) -> ChunkCache:
        return self._local.chunk_cache

    @property
    def remote_reader(self) -> RemoteReader:
        return self._local.remote_reader

    @property
    def ports(self) -> dict[str, int]:
        """By the name of the listener. A port that the system chooses is known after ``start`` has bound it."""
        return self._addresses.ports

    @property
    def port(self) -> int:
        """Of the local listener."""
        return self._addresses.port

    @property
    def endpoints(self) -> list[Endpoint]:
        """The addresses of this broker, for its registration. The first is for other brokers."""
        return self._addresses.endpoints

    # From here on: there while ``start`` reads the metadata, and later.

    @property
    def membership(self) -> Membership:
        return self._cluster.membership

    @property
    def cluster(self) -> ClusterView:
        """This broker's copy of the cluster's metadata."""
        return self._cluster.view

    @property
    def partitions(self) -> Partitions:
        return self._cluster.partitions

    @property
    def write_ahead(self) -> WriteAhead | None:
        """None until this broker leads a partition of a topic with ``firn.durability=object``."""
        return self._cluster.journal.write_ahead

    @property
    def _link(self) -> NodeLink | None:
        return self._cluster.link

    # From here on: there after ``start``.

    @property
    def context(self) -> Context:
        return self._serving.context

    @property
    def server(self) -> KafkaServer:
        return self._serving.server

    @property
    def shares(self) -> ShareCoordinator:
        return self._serving.shares

    @property
    def transactions(self) -> TransactionCoordinator:
        return self._serving.transactions

    @property
    def requests(self) -> RequestCoordinator:
        return self._serving.requests

    @property
    def schema_follower(self) -> SchemaFollower:
        return self._serving.schema_follower

    @property
    def spending(self) -> Spending | None:
        """As ``LateSpending.spending``."""
        return self._serving.spending.spending

    @property
    def followers(self) -> Followers | None:
        """Fetches from other leaders; None on a broker that is alone."""
        several = self._serving.several
        return None if several is None else several.followers

    @property
    def tier_views(self) -> TierViews | None:
        """This broker's views of the tier of partitions that it follows; None on a broker that is alone."""
        several = self._serving.several
        return None if several is None else several.tier_views

    # --- starting ------------------------------------------------------------------------------------------------

    async def start(self, *, listen: bool = True) -> None:
        """Do all work before the first request; see the module's docstring.

        Raises: ConfigError (another node's directory, an address that cannot be listened on), ConflictError (the directory
        is in use), StartRefused, StorageUnavailable, CorruptionError. ``stop`` must be called then, too.
        """
        around, config, local = self._around, self.config, self._local
        if self._tracing is not None:
            self._tracing.start()
            self._stops.begun(self._tracing.stop)
        self._stops.begun(self._leave)
        if not config.open:
            from app.broker.security.listener_doors import Doors

            self._doors = Doors(config, lambda: self.cluster.image, around.clock.now_ms, self._token_secrets)
            self._doors.register(self.registry)
        if config.audited:
            from app.broker.security.broker_audit import BrokerAudit

            self.audit = BrokerAudit(
                config, clock=around.clock, pool=around.pool, registry=self.registry, faults=self.faults
            )
            self._stops.begun(self.audit.close)
        meta = claim(config, around, local.logs)
        self._stops.begun(self._addresses.close)
        if listen:
            self._addresses.bind()
        directory = await open_directory(config, around, meta)
        self._cluster_parts = cluster = new_cluster_parts(
            config,
            around,
            self.registry,
            self.faults,
            local=local,
            directory=directory,
            addresses=self._addresses,
            background=self._background,
        )
        cluster.view.on_fenced(self._on_fenced)
        self.load_report = await load(local, cluster)
        for problem in self.load_report.problems:
            self._log_line(Event.LOG_DIRECTORY_PROBLEM.line(problem))
        if self.load_report.lacking:
            self._tell_what_is_missing(self.load_report.lacking)
            if cluster.member is not None:
                cluster.member.lacks_records()
        if meta is None:
            owner = MetaProperties(cluster.view.image.cluster_id, BrokerId(config.node_id), directory.directory_id)
            local.logs.write_meta(owner)
        self._serving_parts = new_serving_parts(
            config,
            around,
            self.registry,
            self.faults,
            local=local,
            cluster=cluster,
            doors=self._doors,
            audit=self.audit,
            token_secrets=self._token_secrets,
            advertised=(config.advertised_host or config.listen_host, config.advertised_port or self.port),
            on_drained=self.request_stop,
            tracer=None if self._tracing is None else self._tracing.tracer,
        )

    # --- running -------------------------------------------------------------------------------------------------

    async def run(self, ready: Callable[[], None] | None = None) -> None:
        """Serve until ``request_stop``. ``ready`` is called when requests can be served.

        Raises: FencedError when another broker has taken over; StorageUnavailable (a manifest cannot be read, before anything
        is served); an ExceptionGroup for a bug of ours.
        """
        try:
            async with self._background:
                self._background.start_all(self._before_joining())
                if not await self._join():
                    self._background.cancel()
                    return
                try:
                    await self._take_over()
                    self._background.start_all(self._serving.begin_to_follow())
                    await self._serve(ready)
                finally:
                    self.context.drain.interrupt()
                    await self.server.close()
                await self._leave_cluster()
                self._background.cancel()
        except BaseExceptionGroup as failures:
            _, bugs = failures.split((FirnError, asyncio.CancelledError))
            if bugs is not None:
                raise
            raise (copy_of(self._fenced) if self._fenced is not None else first_error(failures)) from None
        finally:
            if self._fenced is not None:
                await tell_what_stays_behind(
                    self.logs, self.remote_log_manager, data_dir=self.config.data_dir, log_line=self._log_line
                )
        if self._fenced is not None:
            raise copy_of(self._fenced)

    def _before_joining(self) -> Sequence[Run]:
        """The parts that run while this broker waits to be registered."""
        of_audit = [self.audit.run] if self.audit is not None else []
        return [self._run_membership, self._keep_sure_of_place, self.remote_reader.run, *of_audit]

    async def _join(self) -> bool:
        """Have the controller register this broker, if it is one of several. Returns: False if the broker is to stop before.

        Raises: FencedError.
        """
        several = self._serving.several
        if several is None:
            return True
        # The controller tries this broker's address before it registers it.
        await self._addresses.listen(self.server)
        joined = False
        try:
            joined = await self._is_registered(several.member)
        finally:
            if not joined:
                await self.server.close()
        if not joined:
            if self._fenced is not None:
                raise copy_of(self._fenced)
            return False
        self.partitions.high_watermarks = await several.high_watermarks.read()
        return True

    async def _is_registered(self, member: ClusterMember) -> bool:
        """Wait until the controller has registered this broker. Returns: False if the broker is to stop before."""
        waiting = [asyncio.create_task(member.joined()), asyncio.create_task(self._stopping.wait())]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            return not self._stopping.is_set()
        finally:
            for task in waiting:
                task.cancel()

    async def _take_over(self) -> None:
        report = self.load_report
        assert report is not None, "the node has started"
        await self.partitions.take_over_all(
            clean=report.clean, new_directory=self._cluster.directory.is_new, differing=report.differing
        )
        self._note_what_is_back()
        self._leads = True

    async def _serve(self, ready: Callable[[], None] | None) -> None:
        """Serve until ``request_stop``, and then until others lead this broker's partitions, as far as they can."""
        context, member = self.context, self._cluster.member
        if member is None:
            await self._addresses.listen(self.server)
        else:
            context.starting = False
            member.ready()
            if member.alone:
                await self._lead_again()
        if self._doors is not None and not self._stopping.is_set():
            await self._add_first_users()
            context.users_due = False
        if ready is not None and not self._stopping.is_set():
            ready()
        await self._stopping.wait()
        if member is not None and self._fenced is None:
            await self._cluster.journal.leave(member)

    async def _leave_cluster(self) -> None:
        """After the last request: end the write-ahead log, and tell the controller."""
        if self._fenced is None:
            await self._cluster.journal.close()
        if self._cluster.member is not None and self._fenced is None:
            await self._cluster.member.left()

    async def _lead_again(self) -> None:
        """A broker that is alone is ready when it leads its former partitions, or after ``LEAD_S``: there is no other broker to
        ask. The losses of a take-over are told when the broker leads, however long that takes."""
        leading = self._background.start(self._until_led)
        stopping = asyncio.create_task(self._stopping.wait())
        try:
            await asyncio.wait((leading, stopping), timeout=LEAD_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()

    async def _until_led(self) -> None:
        await self.partitions.report.until_led(new_directory=self._cluster.directory.is_new)
        self._note_what_is_back()

    def _tell_what_is_missing(self, logs: Iterable[PartitionLog]) -> None:
        for log in logs:
            self._log_line(
                Event.LOG_SEGMENTS_MISSING.line(
                    f"{log.path} lacks offsets {', '.join(map(str, log.lost))}: segment files are missing or damaged. Reads of"
                    " them fail, unless the object store has them or the leader sends them again. If nothing has them, delete the"
                    f" records before offset {log.lost[-1].end} (firn topic delete-records)",
                    topic=log.topic,
                    partition=int(log.partition),
                )
            )

    def _note_what_is_back(self) -> None:
        self.context.back = [(one.name, len(one.ends), one.offsets) for one in self.partitions.report.back]

    async def _add_first_users(self) -> None:
        """Make the users that `firn user add --offline` left in the data directory, if the cluster has none."""
        from app.broker.security.first_users import add_first_users

        await add_first_users(
            self.config, self.context, fs=self._around.fs, pool=self._around.pool, log_line=self._log_line
        )

    async def _run_membership(self) -> None:
        try:
            await self.membership.run()
        except FencedError as error:
            self._on_fenced(error)

    async def _keep_sure_of_place(self) -> None:
        try:
            await self._cluster.gate.run(self.cluster.look)
        except* FencedError as errors:
            self._on_fenced(next(iter(errors.exceptions)))  # type: ignore[arg-type]

    def _on_fenced(self, error: FencedError) -> None:
        """Another broker has taken this broker's place: refuse requests at once."""
        if self._fenced is None:
            self._fenced = error
            if self.started:
                self.server.stop_listening()
                self.server.close_connections()
        self._stopping.set()

    def _on_offline(self, reason: str) -> None:
        sentence = (
            f"the log directory {self.config.data_dir} is offline: {clause(reason)}. The broker no longer reads or writes it; "
            "repair the disk and start the broker again"
        )
        self.faults.met("the log directory", self.config.data_dir, sentence, lasting=True)

    def _note_unreadable(self, partition: TopicIdPartition, batch: UnreadableBatch) -> None:
        topic = self.cluster.image.topics_by_id.get(partition.topic_id)
        name = topic.name if topic is not None else str(partition.topic_id)
        self.logs.log_directory.unreadable.note(f"{name}-{partition.partition}", batch)

    def request_stop(self) -> None:
        """End ``run`` in order."""
        self._stopping.set()

    # --- watching ------------------------------------------------------------------------------------------------

    def watch_loop(self) -> LoopWatch | None:
        """Watch the running loop until the watch is stopped. None if the settings do not want it."""
        return watch_stalls(self.config.firn_loop_stall_ms, self.registry, self.faults, self.server)

    def health(self) -> Health:
        """Whether this broker is ready to serve, and the reasons if it is not."""
        table, no_room = self.partitions.table, self.context.no_room
        trouble = self._around.store_trouble
        return judge(
            store_trouble="" if trouble is None else trouble(),
            offline_reason=self.logs.offline_reason,
            no_room=None if no_room is None else str(no_room),
            leaders=sum(not one.shut for one in table.all_led()) if table.isolated else table.led_count,
            offline=len(table.offline),
            isolated=table.isolated,
        )

    def _show_ready(self) -> list[tuple[tuple[tuple[str, str], ...], float]]:
        return [((), float(self.started and self.health().ready))]

    def _show_store(self) -> list[tuple[tuple[tuple[str, str], ...], float]]:
        trouble = self._around.store_trouble
        return [((), float(trouble is None or not trouble()))]

    def _count_offline(self) -> list[tuple[tuple[tuple[str, str], ...], float]]:
        return [((), float(len(self.partitions.table.offline) if self.claimed else 0))]

    def _is_isolated(self) -> list[tuple[tuple[tuple[str, str], ...], float]]:
        return [((), float(self.claimed and self.partitions.table.isolated))]

    # --- stopping ------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Close the logs cleanly, and release all resources. Call it after ``run``, or after a failed ``start``."""
        await self._stops.stop()

    async def _leave(self) -> None:
        """Let another directory start at once, and save state for the next start here."""
        if self.load_report is None or self._fenced is not None:
            return
        await self.membership.leave()
        if not self.config.firn_ephemeral:
            await self.partitions.leave()
        if self._serving_parts is not None and self._serving_parts.several is not None:
            await self._serving_parts.several.high_watermarks.write()

    async def _close_logs(self) -> None:
        """Close the logs, with the marker of a clean stop, and free the data directory."""
        if self.load_report is None:
            self.logs.lock().close()
        elif self.config.firn_ephemeral:
            self.logs.abandon()  # the durable records are in the bucket, and the next start may have another disk
        else:
            # A start after a crash that did not get so far leaves the next one to find it.
            await self.logs.close(clean=self._leads or self.load_report.clean)
            await self._note_clean_stop()

    async def _note_clean_stop(self) -> None:
        member = self._cluster.member
        if member is None or not self._leads or self._fenced is not None or member.broker_epoch < 0:
            return
        await self._cluster.directory.runs.stopped(member.broker_epoch)
