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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from app.configs import BrokerConfig, TopicConfig
from app.configs.broker_definitions import BROKER_DEFINITIONS
from app.configs.definition import Definition
from app.configs.topic_definitions import TOPIC_DEFINITIONS
from app.configs.validation import check_broker_config
from app.configs.values import format_value, parse_value
from app.errors import ConfigError, RequestRejected
from app.http.access import parse_hosts, parse_origins

OFF: Final = "off"

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
    "--http-allowed-hosts": "firn.http.allowed.hosts",
    "--http-allowed-origins": "firn.http.allowed.origins",
    "--node-id": "node.id",
    "--redis": "firn.redis.url",
    "--take-over": "firn.take.over",
    "--rack": "broker.rack",
}
"""Flags of `firn serve` that are spellings of a setting."""

# Kubernetes gives every pod variables named after the services beside it; a service called "firn" would otherwise be
# mistaken for settings.
_FOREIGN_ENVIRONMENT: Final = re.compile(r"FIRN_(PORT(_\d+_(TCP|UDP)(_\w+)?)?|SERVICE_(HOST|PORT(_\w+)?))")
_OWN_ENVIRONMENT: Final = frozenset({"FIRN_DEBUG", "FIRN_BOOTSTRAP", "FIRN_CONFIG", "FIRN_KAFKA_LIBS"})
"""Read elsewhere; the last tells tests and measurements where Apache Kafka's jars are."""


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
    port = int(match["port"] or port_default or 0)
    if port > 65535:
        raise ConfigError(f"{what} {text!r}: port {port} is above 65535.")
    host = match["six"] or match["host"] or "0.0.0.0"
    return Address(host, port)


class Setting(NamedTuple):
    """One setting of the broker: its name, how its text is read, and what it means."""

    name: str
    topic_setting: str | None
    """The topic setting whose default it is, if it is one."""
    unit: int
    """How many of the topic setting's units are one of its own: 3,600,000 for ``log.retention.hours``."""
    rank: int
    """Of several names of one topic setting in one source, the lowest counts (Kafka's order)."""
    parse: Callable[[str], Mapping[str, Any]]
    """Fields of ``BrokerConfig``, or of ``TopicConfig``. Raises ValueError saying what is allowed."""
    default: str
    documentation: str


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
        sources.append(Source(given, {name: flag for flag, name in FLAGS.items()}.__getitem__))
    sources.append(from_assignments(assignments))
    return resolve(sources)


def resolve(sources: Iterable[Source]) -> Settings:
    """Merge the sources, the later over the earlier, and check every value. Raises: ConfigError."""
    known = catalogue()
    broker: dict[str, Any] = {}
    topic: dict[str, Any] = {}
    origins: dict[str, str] = {}
    for source in sources:
        named = [(_known_name(given), given, text) for given, text in source.values.items()]
        # Coarser names of one setting come first, so that the finer ones replace them.
        for name, given, text in sorted(named, key=lambda entry: -known[entry[0]].rank):
            setting, label = known[name], source.label(given)
            try:
                values = setting.parse(text)
            except ValueError as error:
                shown = f"{label} {text!r}" if name in label else f"{label} {text!r} ({name})"
                raise ConfigError(f"{shown} is not allowed: {error}.") from None
            (topic if setting.topic_setting else broker).update(values)
            origins[name] = label
    config = _completed(replace(BrokerConfig(**broker), topic_defaults=TopicConfig(**topic)))
    check_broker_config(config)
    return Settings(config, origins)


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
    by_variable = {environment_name(name): name for name in (*catalogue(), *ALIASES)}
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
    settings = [
        Setting("firn.take.over", None, 1, 0, _parse_take_over, "false", "Take over a node id from another directory.")
    ]
    for definition in BROKER_DEFINITIONS.values():
        parse = _SPECIAL.get(definition.name) or _plain(definition, definition.name, 1)
        default = _DEFAULT_SHOWN.get(definition.name) or format_value(definition.default) or "none"
        settings.append(Setting(definition.name, None, 1, 0, parse, default, definition.documentation))
    for definition in TOPIC_DEFINITIONS.values():
        for rank, (name, unit) in enumerate(definition.synonyms):
            parse = _plain(definition, name, unit)
            default = format_value(definition.default) or "none"
            if unit != 1 and isinstance(definition.default, int):
                default = str(definition.default // unit)
            settings.append(Setting(name, definition.name, unit, rank, parse, default, definition.documentation))
    return MappingProxyType({setting.name: setting for setting in sorted(settings)})


def unknown_name(name: str) -> ConfigError:
    """The error for a name that no setting has."""
    definition = TOPIC_DEFINITIONS.get(name)
    if definition is not None:
        return ConfigError(f"{name} is set per topic; the broker's default for it is {definition.synonyms[0].name}.")
    names = [*catalogue(), *ALIASES]
    guesses = [guess for guess in (f"log.{name}", f"firn.{name}") if guess in names]
    nearest = guesses or get_close_matches(name, names, n=1, cutoff=0.7)
    hint = f" Did you mean {nearest[0]}?" if nearest else " `firn serve --list-settings` lists all of them."
    return ConfigError(f"There is no setting {name!r}.{hint}")


def _known_name(given: str) -> str:
    name = ALIASES.get(given, given)
    if name not in catalogue():
        raise unknown_name(given)
    return name


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
    if not config.advertised_host and config.listen_host in _WILDCARDS:
        raise ConfigError(
            f"Listening on every interface ({config.listen_host}) needs --advertise HOST:PORT: clients must be told an "
            "address that they can connect to."
        )
    if config.store_url:
        return config
    directory = Path(config.data_dir).absolute()
    return replace(config, store_url=directory.with_name(f"{directory.name}-store").as_uri())


# --- reading values -------------------------------------------------------------------------------------------------


def _plain(definition: Definition, name: str, unit: int) -> Callable[[str], Mapping[str, Any]]:
    def parse(text: str) -> Mapping[str, Any]:
        try:
            value = parse_value(definition, text, name=name)
        except RequestRejected as error:
            # Kafka's sentence begins with the name and the value, which are said already.
            why = str(error).partition(f"for configuration {name}: ")[2] or str(error)
            raise ValueError(why[:1].lower() + why[1:].rstrip(".")) from None
        if unit != 1 and isinstance(value, int) and value >= 0:
            value *= unit
        return {definition.field: value}

    return parse


def _parse_take_over(text: str) -> Mapping[str, Any]:
    if text.strip().lower() not in ("true", "false"):
        raise ValueError("it must be true or false")
    return {"take_over": text.strip().lower() == "true"}


def _parse_directory(text: str) -> Mapping[str, Any]:
    if not text.strip():
        raise ValueError("it must name a directory")
    if "," in text:
        raise ValueError("there can be only one directory")
    return {"data_dir": text}


def _parse_store_url(text: str) -> Mapping[str, Any]:
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in ("file", "s3"):
        raise ValueError("it must be file:///path or s3://bucket/prefix")
    if scheme == "file" and not rest.startswith("/"):
        raise ValueError(f"a file URL has an absolute path, as in {Path(rest).absolute().as_uri()}")
    if scheme == "s3" and not re.match("[^/?]", rest):
        raise ValueError("it names no bucket")
    return {"store_url": text}


def _parse_redis_url(text: str) -> Mapping[str, Any]:
    if not re.match(r"(rediss?|unix)://.", text):
        raise ValueError("it must be redis://HOST:PORT/DB, rediss://… or unix:///path")
    return {"redis_url": text}


def _parse_listeners(text: str) -> Mapping[str, Any]:
    host, port = _address(text)
    return {"listen_host": host, "listen_port": port}


def _parse_advertised(text: str) -> Mapping[str, Any]:
    host, port = _address(text)
    if host in _WILDCARDS:
        raise ValueError("clients cannot connect to a wildcard address")
    return {"advertised_host": host, "advertised_port": port}


def _parse_http(text: str) -> Mapping[str, Any]:
    return {"http_address": OFF if text.strip().lower() == OFF else str(_address(text))}


def _parse_allowed_hosts(text: str) -> Mapping[str, Any]:
    return {"firn_http_allowed_hosts": frozenset(parse_hosts(text))}


def _parse_allowed_origins(text: str) -> Mapping[str, Any]:
    return {"firn_http_allowed_origins": frozenset(parse_origins(text))}


def _address(text: str) -> Address:
    try:
        return parse_address(text, what="the address")
    except ConfigError as error:
        raise ValueError(str(error).rstrip(".")) from None


_SPECIAL: Final[Mapping[str, Callable[[str], Mapping[str, Any]]]] = {
    "log.dirs": _parse_directory,
    "firn.store.url": _parse_store_url,
    "listeners": _parse_listeners,
    "advertised.listeners": _parse_advertised,
    "firn.http.listen": _parse_http,
    "firn.http.allowed.hosts": _parse_allowed_hosts,
    "firn.http.allowed.origins": _parse_allowed_origins,
    "firn.redis.url": _parse_redis_url,
}
_DEFAULT_SHOWN: Final[Mapping[str, str]] = {
    "firn.store.url": "file://<log.dirs>-store",
    "advertised.listeners": "as listeners",
}
_WILDCARDS: Final = ("0.0.0.0", "::")
