"""The error tree.

    FirnError
    ├── ProtocolError        a peer's bytes break the protocol: close the connection, or answer its code
    ├── RequestRejected      an expected refusal: has a Kafka error code, state is unchanged
    │   └── RecordsRejected  … of single records of a batch, which it names
    ├── FencedError          another process is the writer now: stop writing, for good
    ├── ConflictError        the state moved on: refresh, re-validate, try again
    ├── BrokerUnavailable    a broker cannot be reached, or did not answer in time: retry within a budget
    ├── StorageUnavailable   disk or object store cannot answer now: retry within a budget
    │   ├── StorageFull      … because it has no room: retry when some is made
    │   └── DirectoryOffline … because a disk failed: its data is served again after a restart
    ├── CorruptionError      bytes of a disk or a bucket were changed after the write: never retried, always counted
    ├── LimitExceeded        a bound of app/core/limits.py or of a setting would be passed
    └── ConfigError          a setting, flag or address is wrong: one sentence with the mend, exit code 2

An ``AssertionError`` is not in the tree: it is our own bug. ``KAFKA_CODE`` maps the tree to Kafka's error codes;
``REST_CODE`` of ``app/http/errors.py`` maps those codes to the REST proxy's answers.
"""

from __future__ import annotations

import re
from enum import IntEnum
from typing import Final, TypeVar

E = TypeVar("E", bound=BaseException)


class ErrorCode(IntEnum):
    """Kafka's error codes (``org.apache.kafka.common.protocol.Errors``, 4.3.1)."""

    UNKNOWN_SERVER_ERROR = -1
    NONE = 0
    OFFSET_OUT_OF_RANGE = 1
    CORRUPT_MESSAGE = 2
    UNKNOWN_TOPIC_OR_PARTITION = 3
    INVALID_FETCH_SIZE = 4
    LEADER_NOT_AVAILABLE = 5
    NOT_LEADER_OR_FOLLOWER = 6
    REQUEST_TIMED_OUT = 7
    BROKER_NOT_AVAILABLE = 8
    REPLICA_NOT_AVAILABLE = 9
    MESSAGE_TOO_LARGE = 10
    STALE_CONTROLLER_EPOCH = 11
    OFFSET_METADATA_TOO_LARGE = 12
    NETWORK_EXCEPTION = 13
    COORDINATOR_LOAD_IN_PROGRESS = 14
    COORDINATOR_NOT_AVAILABLE = 15
    NOT_COORDINATOR = 16
    INVALID_TOPIC_EXCEPTION = 17
    RECORD_LIST_TOO_LARGE = 18
    NOT_ENOUGH_REPLICAS = 19
    NOT_ENOUGH_REPLICAS_AFTER_APPEND = 20
    INVALID_REQUIRED_ACKS = 21
    ILLEGAL_GENERATION = 22
    INCONSISTENT_GROUP_PROTOCOL = 23
    INVALID_GROUP_ID = 24
    UNKNOWN_MEMBER_ID = 25
    INVALID_SESSION_TIMEOUT = 26
    REBALANCE_IN_PROGRESS = 27
    INVALID_COMMIT_OFFSET_SIZE = 28
    TOPIC_AUTHORIZATION_FAILED = 29
    GROUP_AUTHORIZATION_FAILED = 30
    CLUSTER_AUTHORIZATION_FAILED = 31
    INVALID_TIMESTAMP = 32
    UNSUPPORTED_SASL_MECHANISM = 33
    ILLEGAL_SASL_STATE = 34
    UNSUPPORTED_VERSION = 35
    TOPIC_ALREADY_EXISTS = 36
    INVALID_PARTITIONS = 37
    INVALID_REPLICATION_FACTOR = 38
    INVALID_REPLICA_ASSIGNMENT = 39
    INVALID_CONFIG = 40
    NOT_CONTROLLER = 41
    INVALID_REQUEST = 42
    UNSUPPORTED_FOR_MESSAGE_FORMAT = 43
    POLICY_VIOLATION = 44
    OUT_OF_ORDER_SEQUENCE_NUMBER = 45
    DUPLICATE_SEQUENCE_NUMBER = 46
    INVALID_PRODUCER_EPOCH = 47
    INVALID_TXN_STATE = 48
    INVALID_PRODUCER_ID_MAPPING = 49
    INVALID_TRANSACTION_TIMEOUT = 50
    CONCURRENT_TRANSACTIONS = 51
    TRANSACTION_COORDINATOR_FENCED = 52
    TRANSACTIONAL_ID_AUTHORIZATION_FAILED = 53
    SECURITY_DISABLED = 54
    OPERATION_NOT_ATTEMPTED = 55
    KAFKA_STORAGE_ERROR = 56
    LOG_DIR_NOT_FOUND = 57
    SASL_AUTHENTICATION_FAILED = 58
    UNKNOWN_PRODUCER_ID = 59
    REASSIGNMENT_IN_PROGRESS = 60
    DELEGATION_TOKEN_AUTH_DISABLED = 61
    DELEGATION_TOKEN_NOT_FOUND = 62
    DELEGATION_TOKEN_OWNER_MISMATCH = 63
    DELEGATION_TOKEN_REQUEST_NOT_ALLOWED = 64
    DELEGATION_TOKEN_AUTHORIZATION_FAILED = 65
    DELEGATION_TOKEN_EXPIRED = 66
    INVALID_PRINCIPAL_TYPE = 67
    NON_EMPTY_GROUP = 68
    GROUP_ID_NOT_FOUND = 69
    FETCH_SESSION_ID_NOT_FOUND = 70
    INVALID_FETCH_SESSION_EPOCH = 71
    LISTENER_NOT_FOUND = 72
    TOPIC_DELETION_DISABLED = 73
    FENCED_LEADER_EPOCH = 74
    UNKNOWN_LEADER_EPOCH = 75
    UNSUPPORTED_COMPRESSION_TYPE = 76
    STALE_BROKER_EPOCH = 77
    OFFSET_NOT_AVAILABLE = 78
    MEMBER_ID_REQUIRED = 79
    PREFERRED_LEADER_NOT_AVAILABLE = 80
    GROUP_MAX_SIZE_REACHED = 81
    FENCED_INSTANCE_ID = 82
    ELIGIBLE_LEADERS_NOT_AVAILABLE = 83
    ELECTION_NOT_NEEDED = 84
    NO_REASSIGNMENT_IN_PROGRESS = 85
    GROUP_SUBSCRIBED_TO_TOPIC = 86
    INVALID_RECORD = 87
    UNSTABLE_OFFSET_COMMIT = 88
    THROTTLING_QUOTA_EXCEEDED = 89
    PRODUCER_FENCED = 90
    RESOURCE_NOT_FOUND = 91
    DUPLICATE_RESOURCE = 92
    UNACCEPTABLE_CREDENTIAL = 93
    INCONSISTENT_VOTER_SET = 94
    INVALID_UPDATE_VERSION = 95
    FEATURE_UPDATE_FAILED = 96
    PRINCIPAL_DESERIALIZATION_FAILURE = 97
    SNAPSHOT_NOT_FOUND = 98
    POSITION_OUT_OF_RANGE = 99
    UNKNOWN_TOPIC_ID = 100
    DUPLICATE_BROKER_REGISTRATION = 101
    BROKER_ID_NOT_REGISTERED = 102
    INCONSISTENT_TOPIC_ID = 103
    INCONSISTENT_CLUSTER_ID = 104
    TRANSACTIONAL_ID_NOT_FOUND = 105
    FETCH_SESSION_TOPIC_ID_ERROR = 106
    INELIGIBLE_REPLICA = 107
    NEW_LEADER_ELECTED = 108
    OFFSET_MOVED_TO_TIERED_STORAGE = 109
    FENCED_MEMBER_EPOCH = 110
    UNRELEASED_INSTANCE_ID = 111
    UNSUPPORTED_ASSIGNOR = 112
    STALE_MEMBER_EPOCH = 113
    MISMATCHED_ENDPOINT_TYPE = 114
    UNSUPPORTED_ENDPOINT_TYPE = 115
    UNKNOWN_CONTROLLER_ID = 116
    UNKNOWN_SUBSCRIPTION_ID = 117
    TELEMETRY_TOO_LARGE = 118
    INVALID_REGISTRATION = 119
    TRANSACTION_ABORTABLE = 120
    INVALID_RECORD_STATE = 121
    SHARE_SESSION_NOT_FOUND = 122
    INVALID_SHARE_SESSION_EPOCH = 123
    FENCED_STATE_EPOCH = 124
    INVALID_VOTER_KEY = 125
    DUPLICATE_VOTER = 126
    VOTER_NOT_FOUND = 127
    INVALID_REGULAR_EXPRESSION = 128
    REBOOTSTRAP_REQUIRED = 129
    STREAMS_INVALID_TOPOLOGY = 130
    STREAMS_INVALID_TOPOLOGY_EPOCH = 131
    STREAMS_TOPOLOGY_FENCED = 132
    SHARE_SESSION_LIMIT_REACHED = 133


RETRIABLE: Final[frozenset[ErrorCode]] = frozenset(
    {
        ErrorCode.CORRUPT_MESSAGE,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.LEADER_NOT_AVAILABLE,
        ErrorCode.NOT_LEADER_OR_FOLLOWER,
        ErrorCode.REQUEST_TIMED_OUT,
        ErrorCode.REPLICA_NOT_AVAILABLE,
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
        ErrorCode.NOT_CONTROLLER,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.KAFKA_STORAGE_ERROR,
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.LISTENER_NOT_FOUND,
        ErrorCode.FENCED_LEADER_EPOCH,
        ErrorCode.UNKNOWN_LEADER_EPOCH,
        ErrorCode.OFFSET_NOT_AVAILABLE,
        ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE,
        ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE,
        ErrorCode.ELECTION_NOT_NEEDED,
        ErrorCode.UNSTABLE_OFFSET_COMMIT,
        ErrorCode.THROTTLING_QUOTA_EXCEEDED,
        ErrorCode.UNKNOWN_TOPIC_ID,
        ErrorCode.INCONSISTENT_TOPIC_ID,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
        ErrorCode.SHARE_SESSION_NOT_FOUND,
        ErrorCode.INVALID_SHARE_SESSION_EPOCH,
        ErrorCode.SHARE_SESSION_LIMIT_REACHED,
    }
)
"""Codes on which a client tries again by itself (``RetriableException`` in Kafka's Java client)."""


class FirnError(Exception):
    """Root of the tree. ``str()`` of it is a sentence for a log line, a response or a terminal.

    The sentence names the event, its object and the mend. It begins with a capital letter, or with a name, and ends with a full
    stop (``tools/error_sentences.py`` checks this). ``clause`` puts it into a longer sentence.
    """


class ProtocolError(FirnError):
    """A peer's bytes break the protocol. Nothing was changed."""

    def __init__(self, message: str, code: ErrorCode = ErrorCode.INVALID_REQUEST) -> None:
        super().__init__(message)
        self.code = code


class RequestRejected(FirnError):
    """A well-formed request that is refused, as Kafka refuses it. Nothing was changed."""

    def __init__(self, code: ErrorCode, message: str = "") -> None:
        super().__init__(message or code.name)
        self.code = code


class NotLeader(RequestRejected):
    """A request for a partition that another broker leads, or none. Nothing was changed."""

    def __init__(self, message: str, leader: int, leader_epoch: int) -> None:
        super().__init__(ErrorCode.NOT_LEADER_OR_FOLLOWER, message)
        self.leader = leader
        """Node id; -1 for none."""
        self.leader_epoch = leader_epoch


class SequenceRefused(RequestRejected):
    """A batch of an idempotent producer that does not continue its sequence in the partition. Nothing was changed."""

    def __init__(
        self,
        code: ErrorCode,
        message: str,
        *,
        reason: str,
        producer_id: int,
        epoch: int,
        known_epoch: int,
        sequence: int,
        expected: int,
    ) -> None:
        super().__init__(code, message)
        self.reason = reason
        """One of few, as a label of a metric."""
        self.producer_id = producer_id
        self.epoch = epoch
        self.known_epoch = known_epoch
        """The producer's epoch in the log; -1 if it is not known."""
        self.sequence = sequence
        self.expected = expected


class RecordsRejected(RequestRejected):
    """A batch that is refused for some of its records, which are named (KIP-467). Nothing was changed."""

    def __init__(self, code: ErrorCode, message: str, record_errors: tuple[tuple[int, str], ...]) -> None:
        super().__init__(code, message)
        self.record_errors = record_errors
        """(number of the record in its batch, why it is refused)."""


class FencedError(FirnError):
    """Another writer has taken over. Stop writing; no retry can succeed."""


class ConflictError(FirnError):
    """Another write came first. The caller refreshes its state, validates again and may try again."""


class BrokerUnavailable(FirnError):
    """A broker cannot be reached or did not answer in time. It is not known whether the request was carried out."""


class NotTrusted(BrokerUnavailable):
    """A program answers at the broker's address, and one side does not trust the other's certificate, or does not speak TLS."""


class StorageUnavailable(FirnError):
    """A disk or object store did not answer as it should, perhaps only now. It is not known whether a write was applied."""


class StorageFull(StorageUnavailable):
    """No room on the disk. The attempt was undone. Retry once there is room."""


class DirectoryOffline(StorageUnavailable):
    """The whole log directory is out of use, for a reason that was told when that happened."""


class CorruptionError(FirnError):
    """Stored bytes were changed after the write. The message names the file or object and the position."""


class LimitExceeded(FirnError):
    """A bound would be passed. Nothing was changed."""


class ConfigError(FirnError):
    """A setting is wrong; the message says which and how to mend it."""


KAFKA_CODE: Final[tuple[tuple[type[FirnError], ErrorCode], ...]] = (
    (FencedError, ErrorCode.NOT_LEADER_OR_FOLLOWER),
    (ConflictError, ErrorCode.REQUEST_TIMED_OUT),
    (BrokerUnavailable, ErrorCode.NETWORK_EXCEPTION),
    (StorageUnavailable, ErrorCode.KAFKA_STORAGE_ERROR),
    (CorruptionError, ErrorCode.KAFKA_STORAGE_ERROR),
    (LimitExceeded, ErrorCode.POLICY_VIOLATION),
    (ConfigError, ErrorCode.INVALID_CONFIG),
)
"""Code of each error that carries none itself. Disk and bucket troubles are retriable at the client."""


def kafka_code(error: BaseException) -> ErrorCode:
    """Kafka's code for an error; UNKNOWN_SERVER_ERROR for an error outside of the tree."""
    if isinstance(error, (ProtocolError, RequestRejected)):
        return error.code
    for kind, code in KAFKA_CODE:
        if isinstance(error, kind):
            return code
    return ErrorCode.UNKNOWN_SERVER_ERROR


# --- errors in sentences ------------------------------------------------------------------------------------------------

_OPENING: Final = re.compile(
    r"(?:A|All|An|Another|Cannot|Could|Each|It|Its|No|Not|Nothing|One|Only|Some|That|The|There|These|This|Two) "
)
"""Words that begin a sentence and are no names."""


def clause(error: BaseException | str) -> str:
    """The text of an error, to stand inside a longer sentence: without its full stop, and without its capital if that is no name's.

    ``f"Cannot open {path}: {clause(error)}."`` is one sentence, whether the error comes from Firn or from the operating system.
    """
    text = str(error)
    if not text.endswith("."):
        return text  # in the words of the operating system or of a parser
    return text[0].lower() + text[1:-1] if _OPENING.match(text) else text[:-1]


# --- errors that are kept -----------------------------------------------------------------------------------------------
#
# An error that was raised holds, through its traceback, the local variables of every frame that it passed, and it passes one
# set of frames more each time that it is raised. A request that keeps such an error therefore keeps its records, and all that
# they were decompressed to, until a garbage collection happens to find the cycle.


def without_frames(error: E) -> E:
    """The same error, ready to be kept: it holds the frames neither of itself nor of its causes any more."""
    error.__traceback__ = error.__cause__ = error.__context__ = None
    return error


def copy_of(error: E) -> E:
    """A copy of an error that is kept, to be raised in its place. The copy holds no frames."""
    copy = type(error).__new__(type(error), *error.args)
    copy.__dict__.update(error.__dict__)
    return copy
