"""The options of a read: those of Spark's Kafka source where it has them, checked before anything is asked of a store.

Every mistake is a ``ConfigError`` of one sentence that names the option and the values to write.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, TypeAlias

from app.core.errors import ConfigError, clause
from app.core.limits import MIB
from app.metadata.image.image import INTERNAL_TOPICS
from pyspark_firn.columns import DATA, HEADERS, KAFKA_COLUMNS, SPARK_TYPES
from pyspark_firn.registry import LATEST as LATEST_VERSION
from pyspark_firn.registry import RegistryOptions

SPLIT_BYTES_MIN: Final = 1 * MIB
DIGITS_MAX: Final = 18
"""Of a number in an option: Kafka's have 64 bits."""
_EPOCH: Final = datetime.fromtimestamp(0, UTC)
EARLIEST: Final = -2
LATEST: Final = -1
"""As in Spark's JSON of offsets, and in Kafka's ListOffsets."""

PartitionMap: TypeAlias = Mapping[str, Mapping[int, int]]
"""Topic → partition → an offset or a time."""


@dataclass(frozen=True, slots=True)
class AtOffset:
    """A place in every partition: ``EARLIEST``, ``LATEST``, or an offset for each."""

    everywhere: int | None = None
    by_partition: PartitionMap | None = None


@dataclass(frozen=True, slots=True)
class AtTime:
    """The first record of a partition whose timestamp is not below a time in milliseconds."""

    everywhere: int | None = None
    by_partition: PartitionMap | None = None


Place: TypeAlias = AtOffset | AtTime


class Isolation(StrEnum):
    READ_COMMITTED = "read_committed"
    READ_UNCOMMITTED = "read_uncommitted"


class WhenTimeIsPastTheEnd(StrEnum):
    """The meaning of a starting time in a partition that has no record as young (``startingOffsetsByTimestampStrategy``)."""

    ERROR = "error"
    LATEST = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """Which partitions: exactly one of the three."""

    topics: tuple[str, ...] | None = None
    pattern: str | None = None
    assigned: Mapping[str, Sequence[int]] | None = None

    @property
    def names(self) -> Collection[str]:
        """Topics that are asked for by their name."""
        return self.topics or self.assigned or ()

    def wants(self, topic: str) -> bool:
        """Whether a topic of that name is read. As with Spark's Kafka source a pattern need only be found in the name, and finds no
        topic of the brokers' own."""
        if self.topics is not None:
            return topic in self.topics
        if self.assigned is not None:
            return topic in self.assigned
        assert self.pattern is not None
        return topic not in INTERNAL_TOPICS and re.search(self.pattern, topic) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """The options of a read."""

    store: str
    subscription: Subscription
    start: Place
    end: Place
    past_end: WhenTimeIsPastTheEnd = WhenTimeIsPastTheEnd.ERROR
    columns: tuple[str, ...] = KAFKA_COLUMNS
    isolation: Isolation = Isolation.READ_COMMITTED
    tail: tuple[tuple[str, int], ...] = ()
    """Addresses of brokers, for records that are not in the store yet; empty: those are not read."""
    split_bytes: int | None = None
    """None: as large as ``planning.split_bytes_for`` finds right."""
    fail_on_data_loss: bool = True
    max_bytes_per_trigger: int | None = None
    max_records_per_trigger: int | None = None
    registry: RegistryOptions | None = None
    """Where the schemas of values are; None: values are not decoded."""


OF_REGISTRY: Final = (
    "schema.registry.url", "schema.registry.subject", "schema.registry.version", "schema.registry.basic.auth.user.info",
    "schema.registry.ssl.ca.location", "badValues",
)  # fmt: skip
REGISTRY_URL: Final = OF_REGISTRY[0]
BOTH: Final = (
    "store", "subscribe", "subscribePattern", "assign", "startingOffsets", "startingTimestamp",
    "startingOffsetsByTimestamp", "startingOffsetsByTimestampStrategy", "includeHeaders", "columns", "isolation", "tail",
    "splitBytes", "failOnDataLoss",
)  # fmt: skip
BATCH_ONLY: Final = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
STREAM_ONLY: Final = ("maxBytesPerTrigger", "maxRecordsPerTrigger")
_NO_BROKERS: Final = "leave it out, a bucket is read without brokers; for what is not tiered yet write tail"
_NO_CONSUMER: Final = "leave it out, no consumer takes part"
_SPLITS: Final = "leave it out, splits follow splitBytes"
_TRIGGERS: Final = "leave it out, a trigger takes what there is; say how often with trigger(processingTime=...)"
_PUSHDOWN: Final = (
    "leave it out, records were missing with it: Spark gives what the filters of one query have left to other queries of the same"
    " DataFrame; say what to read with assign and the starting and ending options, and filter as you like"
)
_ELSEWHERE: Final = {
    "kafka.bootstrap.servers": _NO_BROKERS,
    "bootstrap": _NO_BROKERS,
    "kafka.isolation.level": "write isolation",
    "kafka.group.id": _NO_CONSUMER,
    "groupIdPrefix": _NO_CONSUMER,
    "kafkaConsumer.pollTimeoutMs": _NO_CONSUMER,
    "fetchOffset.numRetries": _NO_CONSUMER,
    "fetchOffset.retryIntervalMs": _NO_CONSUMER,
    "minPartitions": _SPLITS,
    "maxRecordsPerPartition": _SPLITS,
    "maxOffsetsPerTrigger": "write maxRecordsPerTrigger",
    "minOffsetsPerTrigger": _TRIGGERS,
    "maxTriggerDelay": _TRIGGERS,
    "pushdown": _PUSHDOWN,
    "path": "write the bucket's address as the option store",
    "topic": "write subscribe",
}
"""Options that other programs know: those of Spark's Kafka source, of Firn's writer, of files."""
_ALIKE: Final = 0.8
"""How much a name has of an option's to be taken for a slip of the pen."""


def parse_columns(given: Mapping[str, str]) -> tuple[str, ...]:
    """The columns that a read with these options has. Raises: ConfigError."""
    by_lower = {"columns": "columns", "includeheaders": "includeHeaders", REGISTRY_URL: REGISTRY_URL}
    return _columns({by_lower[name.lower()]: value for name, value in given.items() if name.lower() in by_lower})


def parse_read_options(given: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """Parse a user's options. Names are compared without case, as Spark does. Raises: ConfigError."""
    known = {name.lower(): name for name in (*BOTH, *OF_REGISTRY, *BATCH_ONLY, *STREAM_ONLY)}
    unknown = [written for written in given if written.lower() not in known]
    if unknown:
        raise ConfigError(_unknown(unknown, (*BOTH, *OF_REGISTRY, *(STREAM_ONLY if streaming else BATCH_ONLY))))
    options = {known[written.lower()]: value for written, value in given.items()}
    for name in BATCH_ONLY if streaming else STREAM_ONLY:
        if name in options:
            kind = "a stream has no end" if streaming else "only a stream has triggers"
            raise ConfigError(f"The option {name!r} does not go with this kind of read: {kind}; leave it out.")
    if "store" not in options:
        raise ConfigError("The option 'store' is missing: write file:///absolute/path or s3://bucket/prefix.")
    return ReadOptions(
        store=options["store"],
        subscription=_subscription(options),
        start=_place(options, "starting", AtOffset(EARLIEST), streaming=streaming),
        end=_place(options, "ending", AtOffset(LATEST), streaming=streaming),
        past_end=_choice(
            "startingOffsetsByTimestampStrategy",
            options.get("startingOffsetsByTimestampStrategy", "error"),
            WhenTimeIsPastTheEnd,
        ),
        columns=_columns(options),
        isolation=_choice("isolation", options.get("isolation", Isolation.READ_COMMITTED.value), Isolation),
        tail=_tail(options.get("tail", "none")),
        split_bytes=_bytes(options, "splitBytes", None, at_least=SPLIT_BYTES_MIN),
        fail_on_data_loss=_flag(options, "failOnDataLoss", default=True),
        max_bytes_per_trigger=_bytes(options, "maxBytesPerTrigger", None, at_least=1),
        max_records_per_trigger=_count(options, "maxRecordsPerTrigger"),
        registry=_registry(options),
    )


def parse_registry(given: Mapping[str, str]) -> RegistryOptions:
    """The registry of a read that decodes values, before all other options are known. Raises: ConfigError."""
    known = {name.lower(): name for name in (*OF_REGISTRY, "subscribe", "subscribePattern", "assign")}
    found = _registry({known[name.lower()]: value for name, value in given.items() if name.lower() in known})
    assert found is not None
    return found


def has_registry(given: Mapping[str, str]) -> bool:
    """Whether a read with these options decodes values."""
    return any(name.lower() == REGISTRY_URL for name in given)


def _registry(options: Mapping[str, str]) -> RegistryOptions | None:
    url, subject, version, user_info, ca_location, bad_values = (options.get(name, "").strip() for name in OF_REGISTRY)
    if REGISTRY_URL not in options:
        for name in OF_REGISTRY:
            if name in options:
                raise ConfigError(f"The option {name!r} needs {REGISTRY_URL}: write the address of a schema registry.")
        return None
    if not subject:
        names = tuple(_subscription(options).names)
        if len(names) != 1:
            raise ConfigError(
                "The option 'schema.registry.subject' is missing, and the read has not one topic alone: write the subject whose "
                "schema gives the columns."
            )
        subject = f"{names[0]}-value"
    if version and version != LATEST_VERSION and re.fullmatch("[1-9][0-9]{0,9}", version) is None:
        raise ConfigError(f"The option 'schema.registry.version' is {version!r}: write a number or {LATEST_VERSION}.")
    if bad_values not in ("", "fail", "null"):
        raise ConfigError(f"The option 'badValues' is {bad_values!r}: write fail or null.")
    return RegistryOptions(
        url=url,
        subject=subject,
        version=version or LATEST_VERSION,
        user_info=user_info,
        ca_location=ca_location,
        bad_is_null=bad_values == "null",
    )


def _unknown(names: Sequence[str], known: Sequence[str]) -> str:
    """The error for unknown options. A job of another format may have several: the error names all."""
    elsewhere = {name.lower(): (name, hint) for name, hint in _ELSEWHERE.items()}
    by_lower = {name.lower(): name for name in known}
    told = []
    for written in names:
        name, hint = elsewhere.get(written.lower(), (written, ""))
        if not hint and written.lower().startswith("kafka."):
            hint = _NO_CONSUMER
        if not hint:
            alike = difflib.get_close_matches(written.lower(), by_lower, 1, _ALIKE)
            hint = f"perhaps {by_lower[alike[0]]} is meant" if alike else f"there are {', '.join(known)}"
        told.append((name, hint))
    if len(told) == 1:
        [(name, hint)] = told
        return f"There is no option {name!r}: {hint}."
    return f"There are no options {', '.join(f'{name!r} ({hint})' for name, hint in told)}."


def _subscription(options: Mapping[str, str]) -> Subscription:
    given = [name for name in ("subscribe", "subscribePattern", "assign") if name in options]
    if len(given) != 1:
        said = "none is given" if not given else f"{' and '.join(given)} are given"
        raise ConfigError(f"Say what to read with one of subscribe, subscribePattern and assign; {said}.")
    [name] = given
    text = options[name]
    match name:
        case "subscribe":
            topics = tuple(dict.fromkeys(topic.strip() for topic in text.split(",") if topic.strip()))
            if not topics:
                raise ConfigError("The option 'subscribe' names no topic: write topics with commas between them.")
            return Subscription(topics=topics)
        case "subscribePattern":
            try:
                re.compile(text)
            except re.error as error:
                raise ConfigError(f"The option 'subscribePattern' is no regular expression: {clause(error)}.") from None
            return Subscription(pattern=text)
        case _:
            example = '{"topic": [0, 1]}'
            parsed = _json("assign", text, example)
            if not all(
                isinstance(indexes, list) and indexes and all(type(index) is int and index >= 0 for index in indexes)
                for indexes in parsed.values()
            ):
                raise ConfigError(f"The option 'assign' is not of the form {example}.")
            return Subscription(assigned={topic: tuple(dict.fromkeys(indexes)) for topic, indexes in parsed.items()})


def _place(options: Mapping[str, str], which: str, default: Place, *, streaming: bool) -> Place:
    """Where to start or to end; a time for all goes before times by partition, and those before offsets, as in Spark.

    A read that ends with the newest record cannot start there: a batch gets this error, as from Spark's Kafka source.
    """
    name = f"{which}Timestamp"
    if name in options:
        text = options[name].strip()
        if text.startswith("{"):
            return AtTime(by_partition=_times(name, text))
        return AtTime(_time(name, text))
    name = f"{which}OffsetsByTimestamp"
    if name in options:
        return AtTime(by_partition=_times(name, options[name]))
    name = f"{which}Offsets"
    if name not in options:
        return default
    text = options[name].strip()
    words = {"earliest": EARLIEST} if which == "starting" else {}
    if which == "ending" or streaming:
        words["latest"] = LATEST
    if text.startswith("{"):
        found = _by_partition(name, text, '{"topic": {"0": 23, "1": -2}}')
        for topic, offsets in found.items():
            for index, offset in offsets.items():
                if type(offset) is not int or (offset < 0 and offset not in words.values()):
                    numbers = ", ".join(f"{number} for {word}" for word, number in words.items())
                    raise ConfigError(
                        f"The option {name!r} has {json.dumps(offset)} for {topic}-{index}: write an offset, or {numbers}."
                    )
        return AtOffset(by_partition=found)
    if text.lower() == "latest" and "latest" not in words:
        raise ConfigError(
            f"The option {name!r} is {text!r}, and a batch has nothing to read there: write earliest or JSON by topic and"
            " partition, or read a stream."
        )
    if text.lower() not in words:
        raise ConfigError(f"The option {name!r} is {text!r}: write {', '.join(words)} or JSON by topic and partition.")
    return AtOffset(words[text.lower()])


def _json(name: str, text: str, example: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except ValueError as error:
        raise ConfigError(f"The option {name!r} is no JSON ({clause(error)}): write it like {example}.") from None
    if not isinstance(parsed, dict) or not parsed:
        raise ConfigError(f"The option {name!r} is not of the form {example}.")
    return parsed


def _by_partition(name: str, text: str, example: str) -> dict[str, dict[int, Any]]:
    found: dict[str, dict[int, Any]] = {}
    for topic, values in _json(name, text, example).items():
        if not isinstance(values, dict) or not all(index.isdecimal() for index in values):
            raise ConfigError(f"The option {name!r} is not of the form {example}.")
        found[topic] = {int(index): value for index, value in values.items()}
    return found


def _times(name: str, text: str) -> PartitionMap:
    found = _by_partition(name, text, '{"topic": {"0": 1700000000000}}')
    return {
        topic: {index: _time(name, str(value)) for index, value in values.items()} for topic, values in found.items()
    }


def _time(name: str, text: str) -> int:
    """Milliseconds since the Unix epoch."""
    if re.fullmatch(f"[0-9]{{1,{DIGITS_MAX}}}", text):
        return int(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ConfigError(
            f"The option {name!r} is {text!r}: write milliseconds since 1970 or a time like 2013-07-01T00:00:00Z."
        ) from None
    if moment.tzinfo is None:
        whole = moment.isoformat()
        raise ConfigError(
            f"The option {name!r} is {text!r}, without a time zone: add one, as in {whole}Z or {whole}+02:00."
        )
    if moment < _EPOCH:
        raise ConfigError(
            f"The option {name!r} is {text!r}, and no record is of a time before 1970: write 0 or a later time."
        )
    return round(moment.timestamp() * 1000)


def _columns(options: Mapping[str, str]) -> tuple[str, ...]:
    headers = _flag(options, "includeHeaders", default=False)
    decodes = REGISTRY_URL in options
    if "columns" not in options:
        usual = tuple(DATA if decodes and name == "value" else name for name in KAFKA_COLUMNS)
        return (*usual, HEADERS) if headers else usual
    wanted = tuple(dict.fromkeys(name.strip() for name in options["columns"].split(",") if name.strip()))
    there = (*SPARK_TYPES, DATA) if decodes else tuple(SPARK_TYPES)
    by_lower = {name.lower(): name for name in there}
    for name in wanted:
        if name.lower() not in by_lower:
            raise ConfigError(f"There is no column {name!r}: a topic has {', '.join(there)}.")
    if not wanted:
        raise ConfigError(f"The option 'columns' names none: a topic has {', '.join(there)}.")
    named = tuple(by_lower[name.lower()] for name in wanted)
    return (*named, HEADERS) if headers and HEADERS not in named else named


def _tail(text: str) -> tuple[tuple[str, int], ...]:
    return () if text.strip().lower() == "none" else parse_addresses("tail", text)


def parse_addresses(name: str, text: str) -> tuple[tuple[str, int], ...]:
    """Addresses of brokers. Raises: ConfigError."""
    found: list[tuple[str, int]] = []
    for address in text.split(","):
        host, colon, port = address.strip().rpartition(":")
        if not colon or not host or not port.isdecimal() or not 0 < int(port) < 65536:
            raise ConfigError(f"The option {name!r} is {text!r}: write brokers like host:9092,other:9092.")
        found.append((host.strip("[]"), int(port)))
    return tuple(found)


def _flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    match options.get(name, str(default)).strip().lower():
        case "true":
            return True
        case "false":
            return False
        case other:
            raise ConfigError(f"The option {name!r} is {other!r}: write true or false.")


_UNITS: Final = {"": 1, "b": 1, "k": 1 << 10, "kb": 1 << 10, "m": 1 << 20, "mb": 1 << 20, "g": 1 << 30, "gb": 1 << 30}


def _bytes(options: Mapping[str, str], name: str, default: Any, *, at_least: int) -> Any:
    if name not in options:
        return default
    text = options[name].strip()
    found = re.fullmatch(rf"([0-9]{{1,{DIGITS_MAX}}})\s*([a-z]*)", text.lower())
    if found is None or found[2] not in _UNITS:
        raise ConfigError(f"The option {name!r} is {text!r}: write a number, perhaps with k, m or g.")
    value = int(found[1]) * _UNITS[found[2]]
    if value < at_least:
        raise ConfigError(f"The option {name!r} is {text!r}: write at least {at_least}.")
    return value


def _count(options: Mapping[str, str], name: str) -> int | None:
    if name not in options:
        return None
    text = options[name].strip()
    if re.fullmatch(f"[0-9]{{1,{DIGITS_MAX}}}", text) is None or not int(text):
        raise ConfigError(f"The option {name!r} is {text!r}: write a whole number, at least 1.")
    return int(text)


def _choice(name: str, text: str, kind: Any) -> Any:
    try:
        return kind(text.strip().lower())
    except ValueError:
        words = " or ".join(member.value for member in kind)
        raise ConfigError(f"The option {name!r} is {text!r}: write {words}.") from None
