"""The names of the log lines that a process writes for its operator.

A line is a text for people. ``Event.BROKER_READY.line("broker 1 serves …", broker_id=1)`` is the same text with a name and fields
for programs, which the format ``json`` writes (``notices.py``). A name never changes its meaning; the text may change.

Tests: ``tests/core/test_log_events.py``, and ``tests/core/test_notices.py`` for the format.

``EVENT_OF_FAULT`` has the names of faults by their kind (``faults.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, StrEnum
from typing import Final

Field = str | int | float | bool | None


class Level(StrEnum):
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    """Records, availability or money may be lost until a person acts."""


class Line(str):
    """A text with its name and fields. It is equal to its text."""

    __slots__ = ("event", "fields", "level")
    event: Event
    fields: Mapping[str, Field]
    level: Level

    @classmethod
    def of(cls, text: str, event: Event, level: Level, fields: Mapping[str, Field]) -> Line:
        made = cls(text)
        made.event, made.level, made.fields = event, level, fields
        return made


class Event(Enum):
    """Name, level and meaning of each event."""

    LOG = "log", Level.INFO, "A line without a name of its own; `module` says where it comes from"
    FAULT = "fault", Level.WARNING, "A fault of a kind without a name of its own"
    INTERNAL_ERROR = "internal_error", Level.ERROR, "A bug of Firn; please report it"
    PROCESS_CRASHED = "process.crashed", Level.ERROR, "A process ended by an unexpected error"

    BROKER_STARTING = "broker.starting", Level.INFO, "The broker reads its settings and opens its logs"
    BROKER_READY = "broker.ready", Level.INFO, "The broker serves requests"
    BROKER_STOPPING = "broker.stopping", Level.INFO, "A signal asks the broker to stop"
    BROKER_STOPPED = "broker.stopped", Level.INFO, "The broker has closed its logs; its process ends"
    BROKER_FAILED = "broker.failed", Level.ERROR, "The broker did not start, or it ended by an error"
    BROKER_REPLACED = "broker.replaced", Level.ERROR, "Another broker has taken over this node id, so this one ended"
    BROKER_WAITS = "broker.waits", Level.INFO, "The start waits for a store, a node id or the registration"
    BROKER_STANDSTILL = (
        "broker.standstill",
        Level.WARNING,
        "The process was suspended, and checks that it still owns its node id",
    )
    BROKER_ANSWERS_HELD = "broker.answers_held", Level.ERROR, "Responses wait, because the cluster log cannot be read"
    BROKER_ANSWERS_RESUMED = (
        "broker.answers_resumed",
        Level.INFO,
        "The broker is still the owner of its node id, and responds again",
    )
    BROKER_NODE_ID = "broker.node_id", Level.INFO, "The broker has got a node id"
    BROKER_REGISTERED_AGAIN = "broker.registered_again", Level.WARNING, "The broker has a new broker epoch"
    BROKER_REGISTRATION_FAILED = "broker.registration_failed", Level.WARNING, "The broker cannot register again for now"
    BROKER_SIGN_OF_LIFE_FAILED = (
        "broker.sign_of_life_failed",
        Level.WARNING,
        "A sign of life or a heartbeat was not written",
    )
    BROKER_ISOLATED = "broker.isolated", Level.ERROR, "The broker hears neither controller, nor store, nor most hosts"
    BROKER_REJOINED = "broker.rejoined", Level.INFO, "The broker is not isolated any more"
    BROKER_LEFT_BY_ITSELF = "broker.left_by_itself", Level.WARNING, "The broker stops without the controller's consent"
    BROKER_FENCED = "broker.fenced", Level.WARNING, "The controller does not hear a broker; others lead its partitions"
    BROKER_FENCING_FAILED = (
        "broker.fencing_failed",
        Level.ERROR,
        "The controller cannot fence or unfence brokers for now",
    )
    BROKER_FORGOTTEN = "broker.forgotten", Level.INFO, "A broker without a disk did not return; it is no member now"
    BROKER_TAKE_OVER = "broker.take_over", Level.WARNING, "This broker takes the place of another with its node id"
    BROKER_TAKEN_AWAY = "broker.taken_away", Level.WARNING, "The cloud takes the machine away soon; the broker drains"
    CLOCK_WRONG = "clock.wrong", Level.WARNING, "The clock of a broker differs from the controller's"
    LOOP_STALLED = "loop.stalled", Level.WARNING, "The event loop served no client for longer than `firn.loop.stall.ms`"
    SETTINGS_WITHOUT_EFFECT = "settings.without_effect", Level.WARNING, "Given settings mean nothing here"
    SERVICE_MANAGER_FAILED = "service_manager.failed", Level.WARNING, "The service manager gets no notifications"

    DRAIN_BEGUN = "drain.begun", Level.INFO, "The broker refuses writes, because it drains"
    DRAIN_WITHDRAWN = "drain.withdrawn", Level.INFO, "A drain was cancelled; the broker takes writes again"
    DRAIN_RETRIES = "drain.retries", Level.WARNING, "A step of a drain failed"
    DRAIN_ABORTED_TRANSACTIONS = "drain.aborted_transactions", Level.WARNING, "A drain aborted open transactions"
    DRAIN_DONE = "drain.done", Level.INFO, "All records of tiered topics are in the store"
    DRAIN_CUT_SHORT = "drain.cut_short", Level.ERROR, "The broker stops with records that are only on its disk"

    PROCESS_ENDED = "process.ended", Level.ERROR, "A child process ended and is started again"
    PROCESS_START_FAILED = "process.start_failed", Level.ERROR, "A child process cannot be started"
    STORE_PROCESS_FAILED = "store_process.failed", Level.ERROR, "The store process cannot open the store"
    HTTP_LISTENING = "http.listening", Level.INFO, "An HTTP process without a broker of its own serves"
    HTTP_FAILED = "http.failed", Level.ERROR, "The HTTP process did not start"
    HTTP_REQUESTS_FAIL = "http.requests_fail", Level.WARNING, "HTTP requests fail, because of the brokers"
    HTTP_REQUESTS_CUT_SHORT = "http.requests_cut_short", Level.WARNING, "A stop ended HTTP requests"
    METRICS_MISSING = "metrics.missing", Level.WARNING, "Metrics of a process or a directory cannot be collected"
    TRACES_DROPPED = "traces.dropped", Level.WARNING, "The collector of traces does not take spans"

    CONTROLLER_ELECTED = "controller.elected", Level.INFO, "This broker is the controller"
    CONTROLLER_RESIGNED = "controller.resigned", Level.INFO, "This broker is not the controller any more"
    CONTROLLER_UNDECIDED = "controller.undecided", Level.WARNING, "Whether this broker became the controller is unknown"
    CLUSTER_LOG_FAILED = "cluster_log.failed", Level.ERROR, "The cluster log cannot be read, followed or confirmed"
    CLUSTER_LOG_KEYS_COMPLETE = (
        "cluster_log.keys_complete",
        Level.INFO,
        "The whole cluster log has proofs by the first key",
    )
    SNAPSHOT_FAILED = "snapshot.failed", Level.WARNING, "The cluster log or a manifest has no new snapshot"
    PULSES_ENDED = "pulses.ended", Level.ERROR, "The thread that sends pulses has ended"

    LEADERSHIP_RESIGNED = "leadership.resigned", Level.INFO, "Other brokers lead partitions that this broker led"
    LEADERSHIP_PREFERRED = "leadership.preferred", Level.INFO, "Preferred leaders lead again"
    LEADERSHIP_GIVEN = "leadership.given", Level.INFO, "Partitions were given to brokers that lead fewer"
    LEADERSHIP_FAILED = "leadership.failed", Level.WARNING, "Leaders cannot be changed for now"
    LEADERSHIP_UNCLEAN = "leadership.unclean", Level.ERROR, "A replica that may lack acknowledged records leads"
    PARTITION_OFFLINE = "partition.offline", Level.ERROR, "A partition is not served here"
    PARTITION_ONLINE = "partition.online", Level.INFO, "A partition is led again"
    PARTITION_LEADERLESS = "partition.leaderless", Level.ERROR, "A partition stays without a leader"
    PARTITION_RECORDS_LOST = "partition.records_lost", Level.ERROR, "Records or offsets of a partition are lost"
    PARTITION_FROM_STORE = "partition.from_store", Level.INFO, "A partition goes on after its records in the store"
    PARTITION_DELETED = "partition.deleted", Level.INFO, "The local log of a partition was deleted"
    PARTITION_TRUNCATED = "partition.truncated", Level.WARNING, "A follower was cut back to its leader's history"
    PARTITION_WRITE_FAILED = "partition.write_failed", Level.ERROR, "Records of a partition cannot be written or synced"
    PARTITION_READ_FAILED = "partition.read_failed", Level.ERROR, "Records of a partition cannot be read"
    PARTITION_OPEN_FAILED = (
        "partition.open_failed",
        Level.ERROR,
        "A partition cannot be opened, made, changed or deleted",
    )
    BATCH_UNREADABLE = "batch.unreadable", Level.ERROR, "No consumer can read a stored batch"
    BATCH_OUT_OF_SEQUENCE = "batch.out_of_sequence", Level.WARNING, "A partition refused a batch of a producer"
    REPLICAS_ADDED = "replicas.added", Level.INFO, "Internal topics get more replicas"
    REPLICAS_NOT_ADDED = "replicas.not_added", Level.WARNING, "Internal topics get no more replicas for now"
    REPLICATION_FAILED = "replication.failed", Level.WARNING, "A replica cannot be fetched or followed for now"
    IN_SYNC_SET_UNDECIDED = "in_sync_set.undecided", Level.WARNING, "The controller has not decided in-sync sets"

    LOG_DIRECTORY_OFFLINE = "log_directory.offline", Level.ERROR, "The broker does not use its data directory any more"
    LOG_DIRECTORY_FAILED = (
        "log_directory.failed",
        Level.WARNING,
        "A file of the data directory cannot be read or written",
    )
    LOG_DIRECTORY_LOST = (
        "log_directory.lost",
        Level.ERROR,
        "The data directory was lost; the line names the lost and the recovered offsets",
    )
    LOG_SEGMENTS_MISSING = "log.segments_missing", Level.ERROR, "Segment files are missing in the middle of a log"
    LOG_DIRECTORY_PROBLEM = "log_directory.problem", Level.WARNING, "The start found a problem in the data directory"
    DISK_FULL = "disk.full", Level.ERROR, "The disk has not enough space"
    DISK_HAS_SPACE = "disk.has_space", Level.INFO, "The disk has enough space again; producers are served"
    COMPACTION_STOPPED = "compaction.stopped", Level.ERROR, "A partition is not compacted any more"
    COMPACTION_FAILED = "compaction.failed", Level.WARNING, "A compaction failed and is retried"
    RETENTION_EVERYTHING = "retention.everything", Level.WARNING, "Retention deletes every record of a partition"
    RETENTION_FAILED = "retention.failed", Level.WARNING, "Local segments cannot be deleted for now"

    STORE_FAILED = "store.failed", Level.ERROR, "Operations of the object store fail or hang"
    STORE_WAL_FAILED = "store.wal_failed", Level.ERROR, "Operations of the store of write-ahead logs fail or hang"
    TIERING_FAILED = "tiering.failed", Level.ERROR, "Segments of a partition cannot be uploaded"
    TIERING_HELD = "tiering.held", Level.WARNING, "Local copies stay, because readers need them"
    TIERING_DELAYED = "tiering.delayed", Level.WARNING, "The state of the tier cannot be learned for now"
    TIERING_COVERAGE = "tiering.coverage", Level.ERROR, "A manifest does not cover the offsets that it promises"
    MANIFEST_FAILED = "manifest.failed", Level.ERROR, "A manifest cannot be read"
    ORPHANS_DELETED = "orphans.deleted", Level.INFO, "Orphaned objects and uploads were deleted"
    SWEEP_FAILED = "sweep.failed", Level.WARNING, "Objects cannot be listed or deleted for now"
    CHUNK_CACHE_FAILED = "chunk_cache.failed", Level.WARNING, "The cache of chunks cannot be used"

    WAL_SEALED = "wal.sealed", Level.WARNING, "The write-ahead log of this broker was sealed; it registers again"
    WAL_UNFINISHED = "wal.unfinished", Level.ERROR, "The stop ended before the write-ahead log was in the store"
    WAL_NOT_RELEASED = (
        "wal.not_released",
        Level.WARNING,
        "The controller ends the write-ahead log of a broker that stops",
    )
    WAL_ENDED = "wal.ended", Level.INFO, "A write-ahead log has ended; others lead its partitions"
    WAL_SEAL_FAILED = "wal.seal_failed", Level.ERROR, "A write-ahead log cannot be sealed; its partitions wait"
    DURABILITY_CHANGED = "durability.changed", Level.INFO, "A partition has changed its durability"
    DURABILITY_CHANGE_FAILED = (
        "durability.change_failed",
        Level.WARNING,
        "The durability of a partition cannot be changed",
    )

    TRANSACTION_DECIDED = "transaction.decided", Level.WARNING, "A transaction without a coordinator was decided"
    TRANSACTION_FAILED = "transaction.failed", Level.WARNING, "A transaction cannot be ended for now"
    TRANSACTION_MARKERS_LOST = (
        "transaction.markers_lost",
        Level.ERROR,
        "Transactions stay open, because their markers are lost",
    )
    COORDINATOR_RECORDS_LOST = "coordinator.records_lost", Level.ERROR, "An internal topic may lack its newest records"
    COORDINATOR_FAILED = "coordinator.failed", Level.ERROR, "A partition of an internal topic cannot be read or written"
    GROUP_FAILED = "group.failed", Level.WARNING, "A task of a group failed"
    OFFSETS_STAY = "offsets.stay", Level.WARNING, "Offsets of deleted topics cannot be removed for now"

    LISTENER_FAILED = "listener.failed", Level.ERROR, "Connections cannot be accepted"
    CONNECTION_CLOSED = (
        "connection.closed",
        Level.WARNING,
        "Connections of a host were closed, or their bytes were refused",
    )
    CONNECTION_LIMIT = "connection.limit", Level.WARNING, "Connections beyond a limit were closed"
    TLS_HANDSHAKE_FAILED = "tls.handshake_failed", Level.WARNING, "TLS handshakes of a host fail"
    CERTIFICATE_RELOADED = "certificate.reloaded", Level.INFO, "New connections use other certificates or TLS settings"
    CERTIFICATE_FAILED = (
        "certificate.failed",
        Level.ERROR,
        "A new certificate or TLS setting cannot be used; the old one stays",
    )
    LOGIN_IMPOSSIBLE = "login.impossible", Level.ERROR, "Logins by a mechanism are impossible"
    TOKEN_KEYS_FAILED = "token_keys.failed", Level.ERROR, "The keys of OAuth tokens cannot be fetched"
    TOKENS_REMOVED = "tokens.removed", Level.INFO, "Delegation tokens had ended and were removed"
    USERS_MADE = "users.made", Level.INFO, "Users of `firn user add --offline` were made"
    USERS_NOT_MADE = "users.not_made", Level.ERROR, "Users of `firn user add --offline` were not made"
    FORWARDING_REFUSED = "forwarding.refused", Level.WARNING, "A principal may not pass requests on for another"
    AUDIT_FAILED = "audit.failed", Level.ERROR, "Lines of the audit log cannot be written, or are lost"
    QUOTA_LEASE_FAILED = "quota.lease_failed", Level.WARNING, "Limits of the whole cluster are divided among brokers"
    SCHEMA_CHECK_FAILED = "schema.check_failed", Level.ERROR, "A check by schema failed, so records were refused"
    REQUEST_FAILED = (
        "request.failed",
        Level.ERROR,
        "A request failed by an error without a code, or by a fault of the disk",
    )

    def __init__(self, label: str, level: Level, meaning: str) -> None:
        self.label = label
        self.level = level
        self.meaning = meaning

    def line(self, text: str, **fields: Field) -> Line:
        """``text`` with this name. ``fields``: facts of the text, for programs."""
        return Line.of(text, self, self.level, fields)


EVENT_OF_FAULT: Final[Mapping[str, Event]] = {
    "TLS handshakes of": Event.TLS_HANDSHAKE_FAILED,
    "HTTP requests to": Event.HTTP_REQUESTS_FAIL,
    "a turn of the event loop with": Event.LOOP_STALLED,
    "accepting": Event.LISTENER_FAILED,
    "adding replicas to": Event.REPLICAS_NOT_ADDED,
    "asking for a spot notice at": Event.FAULT,
    "assigning": Event.GROUP_FAILED,
    "becoming": Event.CONTROLLER_UNDECIDED,
    "changing the durability of": Event.DURABILITY_CHANGE_FAILED,
    "checking payloads by schema": Event.SCHEMA_CHECK_FAILED,
    "compacting": Event.COMPACTION_FAILED,
    "confirming": Event.CLUSTER_LOG_FAILED,
    "connections of": Event.CONNECTION_CLOSED,
    "copying": Event.LOG_DIRECTORY_FAILED,
    "deciding a result of": Event.TRANSACTION_FAILED,
    "deciding results of": Event.TRANSACTION_FAILED,
    "deciding transactions of": Event.TRANSACTION_FAILED,
    "deleting from": Event.CHUNK_CACHE_FAILED,
    "deleting objects of": Event.SWEEP_FAILED,
    "dropping ended ranges of": Event.SWEEP_FAILED,
    "electing": Event.LEADERSHIP_FAILED,
    "ending transactions in": Event.TRANSACTION_FAILED,
    "expiring results of": Event.TRANSACTION_FAILED,
    "fencing": Event.BROKER_FENCING_FAILED,
    "fetching from": Event.REPLICATION_FAILED,
    "fetching the keys of tokens of": Event.TOKEN_KEYS_FAILED,
    "finding room in": Event.DISK_FULL,
    "following": Event.REPLICATION_FAILED,
    "forgetting": Event.FAULT,
    "holding copies for": Event.TIERING_HELD,
    "internal errors:": Event.INTERNAL_ERROR,
    "learning of the tier from": Event.TIERING_DELAYED,
    "leasing quotas from": Event.QUOTA_LEASE_FAILED,
    "loading": Event.COORDINATOR_FAILED,
    "local retention of": Event.RETENTION_FAILED,
    "logins of HTTP callers by": Event.LOGIN_IMPOSSIBLE,
    "making logs of": Event.PARTITION_OPEN_FAILED,
    "making states of share group": Event.GROUP_FAILED,
    "metrics of": Event.METRICS_MISSING,
    "more connections of": Event.CONNECTION_LIMIT,
    "opening": Event.PARTITION_OPEN_FAILED,
    "proposing": Event.IN_SYNC_SET_UNDECIDED,
    "reaching": Event.HTTP_REQUESTS_FAIL,
    "reading": Event.PARTITION_READ_FAILED,
    "reading from": Event.CHUNK_CACHE_FAILED,
    "reading the certificates of": Event.CERTIFICATE_FAILED,
    "reading the counters of": Event.METRICS_MISSING,
    "reading the free space of": Event.LOG_DIRECTORY_FAILED,
    "reading the manifest of": Event.MANIFEST_FAILED,
    "registering again": Event.BROKER_REGISTRATION_FAILED,
    "rolling": Event.PARTITION_WRITE_FAILED,
    "sealing": Event.WAL_SEAL_FAILED,
    "searching by time in": Event.PARTITION_READ_FAILED,
    "sending": Event.PULSES_ENDED,
    "sending spans to": Event.TRACES_DROPPED,
    "serving": Event.REQUEST_FAILED,
    "sharing": Event.PARTITION_READ_FAILED,
    "snapshots of": Event.SNAPSHOT_FAILED,
    "storing progress of": Event.GROUP_FAILED,
    "storing what was written to": Event.COORDINATOR_FAILED,
    "sweeping": Event.SWEEP_FAILED,
    "syncing": Event.PARTITION_WRITE_FAILED,
    "the clock of": Event.CLOCK_WRONG,
    "the heartbeat of": Event.BROKER_SIGN_OF_LIFE_FAILED,
    "the log directory": Event.LOG_DIRECTORY_OFFLINE,
    "the object store's": Event.STORE_FAILED,
    "the WAL store's": Event.STORE_WAL_FAILED,
    "the sign of life of": Event.BROKER_SIGN_OF_LIFE_FAILED,
    "the tier of": Event.TIERING_COVERAGE,
    "the unfinished requests of": Event.CONNECTION_CLOSED,
    "tiering": Event.TIERING_FAILED,
    "using the settings of": Event.CERTIFICATE_FAILED,
    "writing": Event.PARTITION_WRITE_FAILED,
    "writing markers to": Event.TRANSACTION_FAILED,
    "writing the audit log": Event.AUDIT_FAILED,
    "writing the checkpoints of": Event.LOG_DIRECTORY_FAILED,
}


def of_fault(text: str, sentence: str, kind: str, *, over: bool = False, **fields: Field) -> Line:
    """``text`` as a line about a fault whose newest sentence is ``sentence``.

    Its name is that of the sentence, or else that of the fault's kind. The end of a fault is no warning.
    """
    named = sentence if isinstance(sentence, Line) else None
    event = EVENT_OF_FAULT.get(kind, Event.FAULT) if named is None else named.event
    own = {} if named is None else named.fields
    return Line.of(text, event, Level.INFO if over else event.level, {"kind": kind, **fields, **own})


def longer(line: str, text: str) -> str:
    """``text``, which continues ``line``, under its name if it has one."""
    return Line.of(text, line.event, line.level, line.fields) if isinstance(line, Line) else text
