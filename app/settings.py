"""Settings: where they come from, in which order, and what is said when one is wrong.

Rising precedence: Firn's defaults; a TOML file; ``FIRN_…`` environment variables; flags; ``--set name=value``. Every setting
has one name: Kafka's where Kafka has the setting (``log.segment.bytes``), ``firn.…`` where it has not. A TOML file may write
it quoted or as nested tables; the environment writes ``.`` as ``_``, in capitals, without a leading ``firn.``:
``log.segment.bytes`` is ``FIRN_LOG_SEGMENT_BYTES`` and ``firn.durability`` is ``FIRN_DURABILITY``.

The core is pure: ``resolve`` takes the sources as text and gives a ``BrokerConfig`` or a ``ConfigError``. Only ``load``
looks at a file. Importing this module costs milliseconds, since `firn serve` waits for it.
"""

from __future__ import annotations

import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

from app.configs import LONG_MAX, BrokerConfig, TopicConfig
from app.errors import ConfigError

INT_MAX: Final = (1 << 31) - 1
OFF: Final = "off"

TOPIC_DEFAULT_NAME: Final[Mapping[str, str]] = {
    "cleanup.policy": "log.cleanup.policy",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "flush.messages": "log.flush.interval.messages",
    "flush.ms": "log.flush.interval.ms",
    "index.interval.bytes": "log.index.interval.bytes",
    "local.retention.bytes": "log.local.retention.bytes",
    "local.retention.ms": "log.local.retention.ms",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.type": "log.message.timestamp.type",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "preallocate": "log.preallocate",
    "retention.bytes": "log.retention.bytes",
    "retention.ms": "log.retention.ms",
    "segment.bytes": "log.segment.bytes",
    "segment.index.bytes": "log.index.size.max.bytes",
    "segment.jitter.ms": "log.roll.jitter.ms",
    "segment.ms": "log.roll.ms",
}
"""Kafka's broker-wide name of a topic setting's default, where it is not the topic's own name."""

SCALED: Final[Mapping[str, tuple[str, int]]] = {
    "log.retention.hours": ("log.retention.ms", 3_600_000),
    "log.retention.minutes": ("log.retention.ms", 60_000),
    "log.roll.hours": ("log.roll.ms", 3_600_000),
    "log.roll.jitter.hours": ("log.roll.jitter.ms", 3_600_000),
}
"""Kafka's coarser spellings of a setting, coarsest first: in one source the finer one wins. -1 stays -1."""

ALIASES: Final[Mapping[str, str]] = {
    "broker.id": "node.id",
    "log.dir": "log.dirs",
    "firn.data.dir": "log.dirs",
    "firn.listen": "listeners",
    "firn.advertise": "advertised.listeners",
    "firn.http": "firn.http.listen",
    "firn.store": "firn.store.url",
    "firn.redis": "firn.redis.url",
    "firn.rack": "broker.rack",
}
"""Other spellings: Kafka's older names, and the flags as environment variables (``FIRN_DATA_DIR``, ``FIRN_LISTEN``)."""

FLAGS: Final[Mapping[str, str]] = {
    "--data-dir": "log.dirs",
    "--store": "firn.store.url",
    "--listen": "listeners",
    "--advertise": "advertised.listeners",
    "--http": "firn.http.listen",
    "--node-id": "node.id",
    "--redis": "firn.redis.url",
    "--take-over": "firn.take.over",
    "--rack": "broker.rack",
}
"""Flags of `firn serve` that are spellings of a setting."""

_BOUNDS: Final[Mapping[str, tuple[float, float]]] = {
    "log.cleaner.min.cleanable.ratio": (0, 1),
    "log.flush.interval.messages": (1, LONG_MAX),
    "log.index.interval.bytes": (0, INT_MAX),
    "log.index.size.max.bytes": (4, INT_MAX),
    "log.local.retention.bytes": (-2, LONG_MAX),
    "log.local.retention.ms": (-2, LONG_MAX),
    "log.retention.bytes": (-1, LONG_MAX),
    "log.retention.ms": (-1, LONG_MAX),
    "log.roll.ms": (1, LONG_MAX),
    "log.segment.bytes": (1024 * 1024, INT_MAX),
    "message.max.bytes": (0, INT_MAX),
    "min.insync.replicas": (1, INT_MAX),
    "compression.gzip.level": (-1, 9),
    "compression.lz4.level": (1, 17),
    "compression.zstd.level": (-131072, 22),
    "node.id": (0, INT_MAX),
    "num.partitions": (1, INT_MAX),
    "default.replication.factor": (1, 32767),
    "connections.max.idle.ms": (-1, LONG_MAX),
    "fetch.max.bytes": (1024, INT_MAX),
    "max.connections": (0, INT_MAX),
    "max.incremental.fetch.session.cache.slots": (0, INT_MAX),
    "max.request.partition.size.limit": (1, INT_MAX),
    "producer.id.expiration.ms": (1, INT_MAX),
    "queued.max.request.bytes": (-1, LONG_MAX),
    "remote.log.manager.task.interval.ms": (1, LONG_MAX),
    "log.retention.check.interval.ms": (1, LONG_MAX),
    "socket.request.max.bytes": (1024, INT_MAX),
    "firn.tier.chunk.bytes": (64 * 1024, 128 * 1024 * 1024),
}
"""Smallest and largest value; whole numbers that are not named here are 0 or more."""

_CHOICES: Final[Mapping[str, tuple[str, ...]]] = {
    "compression.type": ("producer", "uncompressed", "none", "gzip", "snappy", "lz4", "zstd"),
    "log.cleanup.policy": ("delete", "compact"),
}

# Kubernetes gives every pod variables named after the services beside it; a service called "firn" would otherwise be
# mistaken for settings.
_FOREIGN_ENVIRONMENT: Final = re.compile(r"FIRN_(PORT(_\d+_(TCP|UDP)(_\w+)?)?|SERVICE_(HOST|PORT(_\w+)?))")
_OWN_ENVIRONMENT: Final = frozenset({"FIRN_DEBUG", "FIRN_BOOTSTRAP", "FIRN_CONFIG"})


class Address(NamedTuple):
    """Where to listen or to connect."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_address(text: str, *, what: str, port_default: int | None = None) -> Address:
    """Read ``HOST:PORT``, ``[IPv6]:PORT``, ``:PORT`` (every interface) or Kafka's ``PLAINTEXT://HOST:PORT``.

    ``what`` is the flag or setting that the message names. Raises: ConfigError.
    """
    rest = text.strip()
    scheme, separator, after = rest.partition("://")
    if separator:
        if scheme.upper() != "PLAINTEXT":
            raise ConfigError(f"{what} {text!r}: {scheme}:// is not served; use HOST:PORT or PLAINTEXT://HOST:PORT.")
        rest = after
    match = re.fullmatch(r"(?:\[(?P<six>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^:\[\]/\s,]*))(?::(?P<port>\d{1,5}))?", rest)
    if match is None:
        raise ConfigError(f"{what} {text!r} is not an address; write HOST:PORT, for example 127.0.0.1:9092.")
    if match["port"] is None and port_default is None:
        raise ConfigError(f"{what} {text!r} names no port; write HOST:PORT, for example {rest or '127.0.0.1'}:9092.")
    port = int(match["port"]) if match["port"] is not None else typing.cast(int, port_default)
    if port > 65535:
        raise ConfigError(f"{what} {text!r}: port {port} is above 65535.")
    host = match["six"] or match["host"] or "0.0.0.0"
    return Address(host, port)


class Setting(NamedTuple):
    """One setting of the broker: its name and how its text is read."""

    name: str
    field: str
    """Field of ``BrokerConfig`` or, with ``of_topic``, of ``TopicConfig``; empty where several come of one text."""
    of_topic: bool
    parse: Callable[[str], Any]
    """Raises ValueError saying what is allowed."""
    default: str
    """As the help shows it."""


@dataclass(frozen=True, slots=True)
class Source:
    """Texts by setting name from one place. ``label`` makes of a name what the user wrote, for messages."""

    values: Mapping[str, str]
    label: Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Settings:
    """What the sources come to."""

    broker: BrokerConfig
    origins: Mapping[str, str]
    """Where each setting that is not at its default was given, for people: ``{"log.segment.bytes": "firn.toml"}``."""


def load(
    *,
    config_path: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, str | None] | None = None,
    assignments: Iterable[str] = (),
) -> Settings:
    """Settings of this process.

    Args:
        config_path: TOML file; None for none.
        environment: the process's environment; None for none.
        flags: text by flag (``--listen``); None values were not given.
        assignments: ``name=value`` texts of ``--set``, in order.

    Raises: ConfigError, one sentence that names the setting, the value, what is allowed and the nearest known name.
    """
    sources = []
    if config_path is not None:
        sources.append(read_config_file(config_path))
    if environment is not None:
        sources.append(from_environment(environment))
    if flags is not None:
        given = {FLAGS[flag]: text for flag, text in flags.items() if text is not None}
        flag_of = {name: flag for flag, name in FLAGS.items()}
        sources.append(Source(given, lambda name: flag_of[name]))
    sources.append(from_assignments(assignments))
    return resolve(sources)


def resolve(sources: Iterable[Source]) -> Settings:
    """Merge the sources, the later over the earlier, and check every value. Raises: ConfigError."""
    texts: dict[str, tuple[str, str]] = {}
    for source in sources:
        texts.update(_canonical(source))
    known = catalogue()
    broker: dict[str, Any] = {}
    topic: dict[str, Any] = {}
    for name, (text, label) in texts.items():
        setting = known[name]
        try:
            value = setting.parse(text)
        except ValueError as error:
            shown = f"{label} {text!r}" if name in label else f"{label} {text!r} ({name})"
            raise ConfigError(f"{shown} is not allowed: {error}.") from None
        if setting.of_topic:
            topic[setting.field] = value
        elif setting.field:
            broker[setting.field] = value
        else:
            broker.update(value)
    broker["topic_defaults"] = TopicConfig(**topic)
    return Settings(_completed(BrokerConfig(**broker)), {name: label for name, (_, label) in texts.items()})


def read_config_file(path: Path) -> Source:
    """The settings of a TOML file. Raises: ConfigError."""
    import tomllib

    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path} is not valid TOML: {error}.") from None
    return Source(dict(_flattened(tables, "", path)), lambda name: f"{name} in {path}")


def from_environment(environment: Mapping[str, str]) -> Source:
    """The settings among ``FIRN_…`` variables. Raises: ConfigError for one that is no setting."""
    by_variable = {environment_name(name): name for name in (*catalogue(), *ALIASES, *SCALED)}
    values: dict[str, str] = {}
    for variable, text in environment.items():
        if not variable.startswith("FIRN_") or variable in _OWN_ENVIRONMENT:
            continue
        if variable in by_variable:
            values[by_variable[variable]] = text
        elif not _FOREIGN_ENVIRONMENT.fullmatch(variable):
            nearest = get_close_matches(variable, by_variable, n=1, cutoff=0.75)
            hint = f" Did you mean {nearest[0]}?" if nearest else " `firn serve --help` says where settings are listed."
            raise ConfigError(f"The environment variable {variable} is no setting of Firn.{hint}")
    return Source(values, environment_name)


def from_assignments(assignments: Iterable[str]) -> Source:
    """The settings of ``--set name=value`` texts. Raises: ConfigError."""
    values: dict[str, str] = {}
    for assignment in assignments:
        name, equals, text = assignment.partition("=")
        if not equals or not name.strip():
            raise ConfigError(
                f"--set {assignment!r} is not of the form name=value, for example log.segment.bytes=67108864."
            )
        values[name.strip()] = text.strip()
    return Source(values, lambda name: f"--set {name}")


def environment_name(name: str) -> str:
    """The environment variable of a setting."""
    return "FIRN_" + name.removeprefix("firn.").replace(".", "_").upper()


@cache
def catalogue() -> Mapping[str, Setting]:
    """Every setting of a broker by name."""
    special = {
        Setting("log.dirs", "data_dir", False, _parse_directory, "./firn-data"),
        Setting("firn.store.url", "store_url", False, _parse_store_url, "file:///<data dir>-store"),
        Setting("listeners", "", False, _parse_listeners, "127.0.0.1:9092"),
        Setting("advertised.listeners", "", False, _parse_advertised, "what is listened on"),
        Setting("firn.http.listen", "http_address", False, _parse_http, "127.0.0.1:8080"),
        Setting("firn.redis.url", "redis_url", False, _parse_redis_url, "none"),
        Setting("firn.take.over", "take_over", False, _parse_boolean, "false"),
    }
    settings = {setting.name: setting for setting in special}
    covered = {setting.field for setting in special} | {"topic_defaults"}
    covered |= {"listen_host", "listen_port", "advertised_host", "advertised_port"}
    for kind, of_topic in ((BrokerConfig, False), (TopicConfig, True)):
        hints = typing.get_type_hints(kind)
        blank = kind()
        for field in fields(kind):
            if not of_topic and field.name in covered:
                continue
            own_name = field.name.replace("_", ".")
            name = TOPIC_DEFAULT_NAME.get(own_name, own_name) if of_topic else own_name
            parse = _parser(name, hints[field.name])
            settings[name] = Setting(name, field.name, of_topic, parse, _shown(getattr(blank, field.name)))
    return types.MappingProxyType(dict(sorted(settings.items())))


def unknown_name(name: str) -> ConfigError:
    """The error for a name that no setting has."""
    if name in TOPIC_DEFAULT_NAME:
        return ConfigError(f"{name} is set per topic; the broker's default for it is {TOPIC_DEFAULT_NAME[name]}.")
    names = [*catalogue(), *ALIASES, *SCALED]
    prefixed = f"log.{name}" if f"log.{name}" in names else f"firn.{name}"
    nearest = [prefixed] if prefixed in names else get_close_matches(name, names, n=1, cutoff=0.7)
    hint = f" Did you mean {nearest[0]}?" if nearest else " `firn serve --settings` lists all of them."
    return ConfigError(f"There is no setting {name!r}.{hint}")


def _canonical(source: Source) -> dict[str, tuple[str, str]]:
    """(text, what the user wrote) by canonical name: aliases and coarser units are translated."""
    known = catalogue()
    out: dict[str, tuple[str, str]] = {}
    for coarse, (name, factor) in SCALED.items():
        if coarse in source.values:
            text, label = source.values[coarse], source.label(coarse)
            try:
                number = int(text)
            except ValueError:
                raise ConfigError(f"{label} {text!r} is not allowed: it must be a whole number.") from None
            out[name] = (str(number * factor if number >= 0 else number), label)
    for given, text in source.values.items():
        if given in SCALED:
            continue
        name = ALIASES.get(given, given)
        if name not in known:
            raise unknown_name(given)
        out[name] = (text, source.label(given))
    return out


def _flattened(table: Mapping[str, Any], prefix: str, path: Path) -> Iterable[tuple[str, str]]:
    for key, value in table.items():
        name = prefix + key
        match value:
            case dict():
                yield from _flattened(value, f"{name}.", path)
            case bool():
                yield name, "true" if value else "false"
            case int() | float() | str():
                yield name, str(value)
            case list() if all(isinstance(item, str) for item in value):
                yield name, ",".join(value)
            case _:
                raise ConfigError(f"{name} in {path} must be a string, a number, true, false or a list of strings.")


def _completed(config: BrokerConfig) -> BrokerConfig:
    """What follows from other settings, filled in. Raises: ConfigError."""
    from dataclasses import replace

    if not config.advertised_host and config.listen_host in ("0.0.0.0", "::"):
        raise ConfigError(
            f"Listening on every interface ({config.listen_host}) needs --advertise HOST:PORT: clients must be told an "
            "address that they can connect to."
        )
    if config.store_url:
        return config
    directory = Path(config.data_dir).absolute()
    return replace(config, store_url=directory.with_name(f"{directory.name}-store").as_uri())


# --- reading values -------------------------------------------------------------------------------------------------


def _parser(name: str, hint: Any) -> Callable[[str], Any]:
    optional = [part for part in typing.get_args(hint) if part is not type(None)]
    if isinstance(hint, types.UnionType) and len(optional) == 1:
        hint = optional[0]
    if name in _CHOICES:
        choices = _CHOICES[name]
        if typing.get_origin(hint) is frozenset:
            return lambda text: _parse_set(text, choices)
        return lambda text: _parse_choice(text, choices)
    if hint is bool:
        return _parse_boolean
    if hint in (int, float):
        low, high = _BOUNDS.get(name, (0, LONG_MAX))
        return lambda text: _parse_number(text, hint, low, high)
    if isinstance(hint, type) and issubclass(hint, StrEnum):
        return lambda text: hint(_parse_choice(text, tuple(hint)))
    assert hint is str, (name, hint)
    return str


def _parse_boolean(text: str) -> bool:
    match text.strip().lower():
        case "true":
            return True
        case "false":
            return False
        case _:
            raise ValueError("it must be true or false")


def _parse_number(text: str, kind: type[int] | type[float], low: float, high: float) -> float:
    form = r"[+-]?\d{1,19}" if kind is int else r"[+-]?\d{1,19}(\.\d{1,19})?"
    if not re.fullmatch(form, text.strip()):
        raise ValueError("it must be a whole number" if kind is int else "it must be a number")
    number = kind(text)
    if number < low:
        raise ValueError(f"the smallest value is {low}")
    if number > high:
        raise ValueError(f"the largest value is {high}")
    return number


def _parse_choice(text: str, choices: tuple[str, ...]) -> str:
    for choice in choices:
        if text.strip().lower() == choice.lower():
            return str(choice)
    nearest = get_close_matches(text, choices, n=1)
    raise ValueError(f"it must be {_either(choices)}" + (f" (perhaps {nearest[0]})" if nearest else ""))


def _parse_set(text: str, choices: tuple[str, ...]) -> frozenset[str]:
    return frozenset(_parse_choice(part, choices) for part in text.split(",") if part.strip())


def _parse_directory(text: str) -> str:
    if not text.strip():
        raise ValueError("it must name a directory")
    if "," in text:
        raise ValueError("one directory is supported")
    return text


def _parse_store_url(text: str) -> str:
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in ("file", "s3"):
        raise ValueError("it must be file:///path or s3://bucket/prefix")
    if scheme == "file" and not rest.startswith("/"):
        raise ValueError(f"a file URL has an absolute path: file://{Path(rest).absolute()}")
    if scheme == "s3" and not rest.split("/", 1)[0].split("?", 1)[0]:
        raise ValueError("it names no bucket")
    return text


def _parse_redis_url(text: str) -> str:
    if not re.match(r"(rediss?|unix)://.", text):
        raise ValueError("it must be redis://HOST:PORT/DB, rediss://… or unix:///path")
    return text


def _parse_listeners(text: str) -> dict[str, Any]:
    host, port = _address(text)
    return {"listen_host": host, "listen_port": port}


def _parse_advertised(text: str) -> dict[str, Any]:
    host, port = _address(text)
    if host in ("0.0.0.0", "::"):
        raise ValueError("clients cannot connect to a wildcard address")
    return {"advertised_host": host, "advertised_port": port}


def _parse_http(text: str) -> str:
    return OFF if text.strip().lower() == OFF else str(Address(*_address(text)))


def _address(text: str) -> Address:
    try:
        return parse_address(text, what="the address")
    except ConfigError as error:
        raise ValueError(str(error).rstrip(".")) from None


def _either(choices: Iterable[str]) -> str:
    *first, last = (str(choice) for choice in choices)
    return f"{', '.join(first)} or {last}" if first else last


def _shown(value: Any) -> str:
    match value:
        case None | "":
            return "none"
        case bool():
            return "true" if value else "false"
        case frozenset():
            return ",".join(sorted(value))
        case _:
            return str(value)
