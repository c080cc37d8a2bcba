"""A drain: the broker refuses writes, uploads every tail of tiered topics, seals the logs, reports "drained", and stops.

ADR 0019 has the rules; the numbers below are theirs. ::

    serving ──begin──► draining ──all whole, sealed in the same turn──► drained ──acknowledged, or TOLD_S──► the broker stops
       ▲                  │
       └────take-back─────┘

The state is only in the process: after a kill or a stop the next start serves.

Tests: ``tests/broker/test_drain.py``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import suppress
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple

from app.configs import TopicConfig
from app.core.errors import ConflictError, ErrorCode, FirnError, RequestRejected, clause
from app.core.log_events import Event
from app.core.turns import STRIDE, Steps, whole
from app.core.units import TopicIdPartition
from app.transactions.state import Transaction

if TYPE_CHECKING:
    from app.configs import BrokerConfig
    from app.core.metrics import Registry
    from app.core.seams import Clock
    from app.hot.log import PartitionLog
    from app.hot.manager import LogManager
    from app.metadata.view.view import ClusterView
    from app.replication.partition import PartitionTable
    from app.tiering.upload.remote_log_manager import RemoteLogManager
    from app.transactions.coordinator import TransactionCoordinator

TRANSACTIONS_S: Final = 2.0
"""How long open transactions may continue after the begin of a drain."""
TOLD_S: Final = 15.0
"""How long a drained broker waits until its caller acknowledges the report."""
LOOK_S: Final = 0.1
"""Pause between two looks, if a look is quick."""
LOOK_SHARE: Final = 0.1
"""Maximum share of time for looks. With many partitions the pauses are longer."""
LOOK_S_MAX: Final = 1.0
LOGS_AT_ONCE: Final = 256
"""Logs checked before the event loop serves other work."""
UNKNOWN: Final = -1


class DrainState(StrEnum):
    SERVING = "serving"
    DRAINING = "draining"
    DRAINED = "drained"


class Left(NamedTuple):
    """A partition of a tiered topic with records that are on this disk only."""

    topic: str
    partition: int
    covered_end: int
    """All records below it are in the store, or deleted; -1 if not known."""
    log_end: int
    bytes: int
    why: str


class Kept(NamedTuple):
    """A topic with bytes on this disk that no drain uploads."""

    topic: str
    partitions: int
    bytes: int
    why: str


class Progress(NamedTuple):
    """The progress of a drain."""

    elapsed_s: float
    left: list[Left]
    kept: list[Kept]
    left_bytes: int
    uploaded_bytes: float
    bytes_per_second: float
    seconds_left: float
    """-1 if unknown."""
    open_transactions: int


def why_kept(config: TopicConfig) -> str:
    """Why no drain uploads a topic's records; empty if a drain does."""
    if not config.tiered:
        return "compacted" if config.compacted else "remote.storage.enable=false"
    return "remote.log.copy.disable=true" if config.remote_log_copy_disable else ""


class Drain:
    """The drain of one broker. Belongs to its loop; ``run`` must be running."""

    def __init__(
        self,
        *,
        config: BrokerConfig,
        clock: Clock,
        registry: Registry,
        cluster: ClusterView,
        logs: LogManager,
        partitions: PartitionTable,
        remote_log_manager: RemoteLogManager,
        transactions: TransactionCoordinator,
        log_line: Callable[[str], None],
        client_line: Callable[[str], None],
    ) -> None:
        """``client_line``: takes notices that clients can cause at will."""
        self._config = config
        self._clock = clock
        self._cluster = cluster
        self._logs = logs
        self._partitions = partitions
        self._remote_log_manager = remote_log_manager
        self._transactions = transactions
        self._log_line = log_line
        self._client_line = client_line
        self.on_end: Callable[[], None] = lambda: None
        """Stops the broker."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when ``refusal`` or ``sealed`` has changed, in the same turn of the loop."""
        self.state = DrainState.SERVING
        self.refusal: RequestRejected | None = None
        """The error for producers; None while the broker serves."""
        self.began_ms = 0
        """When the drain began, by the wall clock."""
        self._began_s = 0.0
        self._copied_before = 0.0
        self._left: list[Left] = []
        self._kept: list[Kept] = []
        self._looked = False
        """Whether a look has finished since the drain began."""
        self._trouble = ""
        """Why the last step failed. The step is retried."""
        self._woken = asyncio.Event()
        self._acknowledged = asyncio.Event()
        registry.gauge(
            "firn_draining",
            "1 while the broker refuses writes because it drains, or has drained",
            lambda: [((), float(self.state is not DrainState.SERVING))],
        )

    @property
    def sealed(self) -> bool:
        """Whether all writes are refused, also those of open transactions."""
        return self.state is DrainState.DRAINED

    # --- steps -------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Refuse writes from now on (rule 1), and let no transaction begin (rule 2). A repeated call changes nothing."""
        if self.state is not DrainState.SERVING:
            return
        if self._config.firn_ephemeral:
            # Nothing is on its disk alone. The stop gives its leaderships to others, and producers hear of it (ADR 0037, J49).
            self.state = DrainState.DRAINED
            self._client_line(
                Event.DRAIN_BEGUN.line("the broker drains: it has no disk that matters, so it stops at once")
            )
            self.on_end()
            return
        self.state = DrainState.DRAINING
        self.refusal = RequestRejected(
            ErrorCode.NOT_ENOUGH_REPLICAS,
            f"Broker {self._config.node_id} is draining and refuses writes; retry until its successor serves.",
        )
        self._transactions.refusal = RequestRejected(
            ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            f"Broker {self._config.node_id} is draining and begins no transaction; retry until its successor serves.",
        )
        self.on_change()
        self._remote_log_manager.drain(True)
        self.began_ms = int(self._clock.now_ms())
        self._began_s = asyncio.get_running_loop().time()
        self._copied_before = self._remote_log_manager.copied_bytes
        self._left, self._kept, self._looked, self._trouble = [], [], False, ""
        self._client_line(
            Event.DRAIN_BEGUN.line("the broker drains: it takes no writes, and uploads what is on its disk alone")
        )
        self._woken.set()

    def take_back(self) -> None:
        """Serve writes again (rule 7). Raises: ConflictError if the broker has drained."""
        if self.state is DrainState.DRAINED:
            raise ConflictError("The broker has drained and stops: it is too late to cancel the drain.")
        if self.state is DrainState.SERVING:
            return
        self.state = DrainState.SERVING
        self.refusal = self._transactions.refusal = None
        self.on_change()
        self._remote_log_manager.drain(False)
        self._client_line(Event.DRAIN_WITHDRAWN.line("the drain was taken back: the broker takes writes again"))
        self._woken.set()

    def acknowledge(self) -> None:
        """The caller acknowledges the report, so the broker stops (rule 6). Raises: ConflictError if the broker has not drained."""
        if self.state is not DrainState.DRAINED:
            raise ConflictError("The broker has not drained.")
        self._acknowledged.set()

    def interrupt(self) -> None:
        """The broker stops. If a drain was under way, log how many bytes stay on its disk only (rule 8)."""
        if self.state is not DrainState.DRAINING:
            return
        left = [one for log in self._tiered() if (one := self._why_left(log)) is not None]
        self._log_line(
            Event.DRAIN_CUT_SHORT.line(
                f"the broker stops before it has drained: {sum(one.bytes for one in left)} bytes of {len(left)} partitions of"
                f" tiered topics are only in {self._config.data_dir}",
                partitions=len(left),
            )
        )

    # --- progress ----------------------------------------------------------------------------------------------------

    def progress(self) -> Progress:
        """The progress at the last look. For a serving broker: the work of a drain."""
        return whole(self.progress_steps())

    def progress_steps(self) -> Steps[Progress]:
        """As ``progress``, in steps: a broker may have thousands of partitions."""
        left, kept, open_transactions = self._left, self._kept, 0
        looks = not self._looked
        if looks:
            left, kept = [], (yield from self._kept_in_steps(self._logs.logs()))
        for number, partition in enumerate(list(self._partitions.all_led())):
            if number % STRIDE == 0:
                yield
            log = partition.log
            if why_kept(log.config):
                continue
            open_transactions += len(log.producers.open_transactions)
            if looks and (one := self._why_left(log)) is not None:
                left.append(one)
        if looks:
            left += self._offline()
        copied = elapsed_s = 0.0
        if self.state is not DrainState.SERVING:
            elapsed_s = asyncio.get_running_loop().time() - self._began_s
            copied = max(0.0, self._remote_log_manager.copied_bytes - self._copied_before)
        left_bytes = sum(one.bytes for one in left)
        rate = copied / elapsed_s if elapsed_s > 0 else 0.0
        return Progress(
            elapsed_s=elapsed_s,
            left=left,
            kept=kept,
            left_bytes=left_bytes,
            uploaded_bytes=copied,
            bytes_per_second=rate,
            seconds_left=0.0 if not left else left_bytes / rate if rate > 0 else UNKNOWN,
            open_transactions=open_transactions,
        )

    def sentence(self) -> str:
        """The progress of the drain in a sentence; empty if there is no drain."""
        if self.state is DrainState.SERVING:
            return ""
        if self.state is DrainState.DRAINED:
            return "the broker has drained and stops"
        now = self.progress()
        if not self._looked:
            return "the broker is draining"
        left = f", about {now.seconds_left:.0f} s left" if now.seconds_left >= 0 else ""
        why = f" ({now.left[0].topic}-{now.left[0].partition}: {clause(now.left[0].why)})" if now.left else ""
        return (
            f"the broker is draining and refuses writes: {now.left_bytes} bytes of {len(now.left)} partitions to upload, "
            f"{now.bytes_per_second:.0f} bytes/s{left}{why}"
        )

    # --- the work ----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Run drains that were begun, until cancelled."""
        while True:
            await self._woken.wait()
            self._woken.clear()
            if await self._finished():
                self._log_line(
                    Event.DRAIN_DONE.line(
                        "the broker has drained: every record of tiered topics is in the store; it stops"
                    )
                )
                with suppress(TimeoutError):
                    async with asyncio.timeout(TOLD_S):
                        await self._acknowledged.wait()
                self.on_end()
                return

    async def _finished(self) -> bool:
        """Upload until all logs are complete and sealed. Returns: whether they are; False if the drain was cancelled or not
        begun."""
        while self.state is DrainState.DRAINING:
            self._woken.clear()  # it may have been taken back and begun anew in one turn of the loop
            if self._seal_if_whole():
                return True
            began_s = asyncio.get_running_loop().time()
            await self._push()
            took_s = asyncio.get_running_loop().time() - began_s
            with suppress(TimeoutError):
                async with asyncio.timeout(min(LOOK_S_MAX, max(LOOK_S, took_s / LOOK_SHARE))):
                    await self._woken.wait()
        return False

    async def _push(self) -> None:
        """Check every log once: roll logs that can be uploaded (rule 3), and abort transactions whose time is up (rule 2)."""
        late = asyncio.get_running_loop().time() - self._began_s >= TRANSACTIONS_S
        if late:
            self._abort_transactions()
        left: list[Left] = []
        for index, log in enumerate(list(self._tiered())):
            if self.state is not DrainState.DRAINING:
                return
            found = self._why_left(log)
            if found is not None:
                left.append(self._rolled(log, found))
            if index % LOGS_AT_ONCE == LOGS_AT_ONCE - 1:
                await asyncio.sleep(0)
        kept = self._kept_topics(self._logs.logs())
        if self.state is DrainState.DRAINING:
            self._left, self._kept, self._looked = left + self._offline(), kept, True
            if left:
                self._remote_log_manager.look()

    def _rolled(self, log: PartitionLog, found: Left) -> Left:
        """Roll a log if its tail can then be uploaded. Returns: its entry of remaining work."""
        try:
            if found.log_end > log.high_watermark:
                log.request_stored(found.log_end)
            if found.covered_end >= 0 and log.last_stable_offset >= found.log_end:
                log.roll()
        except FirnError as error:
            return found._replace(why=f"cannot be rolled: {error}")
        return found

    def _abort_transactions(self) -> None:
        tiered = {log.topic_partition for log in self._tiered()}

        def holds(transaction: Transaction) -> bool:
            return not tiered.isdisjoint(transaction.partitions)

        try:
            aborted = self._transactions.abort_open(holds)
        except RequestRejected as error:
            trouble = f"open transactions cannot be aborted: {error}"
            if trouble != self._trouble:
                self._log_line(Event.DRAIN_RETRIES.line(f"{trouble}; the drain retries"))
            self._trouble = trouble
        else:
            self._trouble = ""
            if aborted:
                self._log_line(
                    Event.DRAIN_ABORTED_TRANSACTIONS.line(
                        f"the drain aborted {aborted} transactions that did not end in time", transactions=aborted
                    )
                )

    def _seal_if_whole(self) -> bool:
        """Rules 4 and 5, in one turn of the loop. Returns: whether all logs are tiered and sealed."""
        logs = list(self._tiered())
        if any(self._is_left(log) for log in logs) or self._offline():
            return False
        refusal = self.refusal
        assert refusal is not None
        for log in logs:
            log.seal(refusal)
        self.state = DrainState.DRAINED
        self._left, self._kept, self._looked = [], self._kept_topics(self._logs.logs()), True
        self.on_change()
        return True

    # --- looking -----------------------------------------------------------------------------------------------------

    def _tiered(self) -> Iterator[PartitionLog]:
        """The logs of tiered topics."""
        led = (partition.log for partition in self._partitions.all_led())
        return (log for log in led if not why_kept(log.config))

    def _covered_end(self, log: PartitionLog) -> int:
        """All records below it are durably in the store or deleted, by the manifest; -1 if the manifest is not read yet."""
        manifest = self._remote_log_manager.manifest_of(TopicIdPartition(log.topic_id, log.partition))
        return UNKNOWN if manifest is None else max(manifest.tiered_end, manifest.log_start_offset)

    def _is_left(self, log: PartitionLog) -> bool:
        """Whether ``log`` has records that are on this disk only, or that are undecided."""
        end = log.log_end_offset
        return end > 0 and (self._covered_end(log) < end or log.last_stable_offset < end)

    def _why_left(self, log: PartitionLog) -> Left | None:
        if not self._is_left(log):
            return None
        covered, end = self._covered_end(log), int(log.log_end_offset)
        trouble = self._remote_log_manager.trouble_of(TopicIdPartition(log.topic_id, log.partition))
        if covered < 0:
            why = "its manifest has not been read, or another broker writes it"
        elif log.producers.open_transactions and log.last_stable_offset < end:
            some = ", ".join(str(one) for one in list(log.producers.open_transactions)[:3])
            why = f"waits for the end of {len(log.producers.open_transactions)} transactions (producer ids {some})"
        elif log.last_stable_offset < end:
            why = "waits for the disk"
        else:
            why = trouble or "is being uploaded"
        size = sum(one.size_bytes for one in log.segments() if one.end_offset > max(covered, one.base_offset))
        return Left(log.topic, int(log.partition), covered, end, size, why)

    def _offline(self) -> list[Left]:
        """Partitions of tiered topics that this broker cannot open, so that the records on its disk are unknown."""
        found = []
        for key, why in self._partitions.offline.items():
            topic = self._cluster.image.topic_by_id(key.topic_id)
            if topic is not None and not why_kept(self._cluster.effective_config(topic)):
                found.append(Left(topic.name, int(key.partition), UNKNOWN, UNKNOWN, 0, f"is offline: {why}"))
        return found

    def _kept_topics(self, logs: list[PartitionLog]) -> list[Kept]:
        return whole(self._kept_in_steps(logs))

    def _kept_in_steps(self, logs: list[PartitionLog]) -> Steps[list[Kept]]:
        found: dict[str, Kept] = {}
        for number, log in enumerate(list(logs)):
            if number % STRIDE == 0:
                yield
            why = why_kept(log.config)
            if why and log.size_bytes:
                before = found.get(log.topic, Kept(log.topic, 0, 0, why))
                found[log.topic] = before._replace(
                    partitions=before.partitions + 1, bytes=before.bytes + log.size_bytes
                )
        return sorted(found.values())
