"""Settings: their sources, the order of these sources, and the errors for wrong settings.

The sources, from the weakest to the strongest: Firn's defaults; a file (TOML, or Kafka's ``.properties``); ``FIRN_…`` environment
variables; flags; ``--set name=value``.

Every setting has one name: Kafka's name if Kafka has the setting (``log.segment.bytes``), else ``firn.…``. A TOML file may
write the name quoted or as nested tables. The environment variable has ``_`` for ``.``, is in capitals, and drops a leading
``firn.``: ``log.segment.bytes`` is ``FIRN_LOG_SEGMENT_BYTES`` and ``firn.durability`` is ``FIRN_DURABILITY``. Settings of Kafka
that have no effect in Firn are accepted, kept and named in one warning.

The core is pure. ``review`` takes the sources as text and returns a verdict for each setting. ``resolve`` returns a
``BrokerConfig``, or raises the ``ConfigError`` of the first refused setting. Only ``sources_of``, which ``load`` calls, reads a
file. Importing this module must take only milliseconds, because `firn serve` waits for it.

Tests: ``tests/cli/test_settings.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from enum import StrEnum
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from app.configs import BrokerConfig, Durability, TopicConfig
from app.configs.broker import NODE_ID_AUTO, OFF
from app.configs.broker_definitions import BROKER_DEFINITIONS, definition_of_listener
from app.configs.definition import Definition
from app.configs.environment import CLIENT_PREFIX, PREFIX, environment_name
from app.configs.listeners import (
    WILDCARDS,
    ClientAuth,
    ListenerConfig,
    SecurityProtocol,
    protocol_of,
    protocols_by_name,
    split_prefixed,
    with_settings,
)
from app.configs.properties import parse_properties
from app.configs.security_definitions import LISTENER_SETTINGS, SECURITY_DEFINITIONS
from app.configs.topic_definitions import BROKER_IDLE, TOPIC_DEFINITIONS
from app.configs.validation import check_broker_config
from app.configs.values import format_value, parse_value
from app.configs.without_effect import (
    BROKER_WITHOUT_EFFECT,
    IN_SYNC,
    OF_REPLICAS,
    WithoutEffect,
    broker_setting_without_effect,
    checked_text,
)
from app.core.addresses import Networks, parse_networks, read_address
from app.core.errors import ConfigError, RequestRejected, clause
from app.core.extras import install_hint
from app.core.notices import FORMAT_VARIABLE
from app.http.access import check_encrypted, check_origins, check_rights, parse_hosts, parse_origins
from app.http.tls_settings import read_tls, texts_of

ALIASES: Final[Mapping[str, str]] = {
    "broker.id": "node.id",
    "log.dir": "log.dirs",
    "firn.data.dir": "log.dirs",
    "firn.listen": "listeners",
    "firn.advertise": "advertised.listeners",
    "firn.http": "firn.http.listen",
    "firn.store": "firn.store.url",
    "firn.wal.store": "firn.wal.store.url",
    "firn.redis": "firn.redis.url",
    "firn.rack": "broker.rack",
}
"""Other spellings: Kafka's older names, and the flags as environment variables (``FIRN_DATA_DIR``, ``FIRN_LISTEN``)."""

FLAGS: Final[Mapping[str, str]] = {
    "--data-dir": "log.dirs",
    "--store": "firn.store.url",
    "--wal-store": "firn.wal.store.url",
    "--listen": "listeners",
    "--advertise": "advertised.listeners",
    "--http": "firn.http.listen",
    "--http-allowed-hosts": "firn.http.allowed.hosts",
    "--http-allowed-origins": "firn.http.allowed.origins",
    "--node-id": "node.id",
    "--redis": "firn.redis.url",
    "--take-over": "firn.take.over",
    "--create-store": "firn.store.create",
    "--ephemeral": "firn.ephemeral",
    "--log-format": "firn.log.format",
    "--rack": "broker.rack",
}
"""Flags of `firn serve` that are spellings of a setting."""

# Kubernetes gives every pod variables named after the services beside it; a service called "firn" would otherwise be
# mistaken for settings.
_FOREIGN_ENVIRONMENT: Final = re.compile(r"FIRN_(PORT(_\d+_(TCP|UDP)(_\w+)?)?|SERVICE_(HOST|PORT(_\w+)?))")
_OWN_ENVIRONMENT: Final = frozenset({"FIRN_DEBUG", "FIRN_BOOTSTRAP", "FIRN_CONFIG", "FIRN_KAFKA_LIBS", FORMAT_VARIABLE})
"""Variables that other code reads. FIRN_KAFKA_LIBS tells tests and measurements where Apache Kafka's jars are."""


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
    """One setting of the broker: its name, its parser and its meaning."""

    name: str
    topic_setting: str | None
    """The topic setting for which this is the broker-wide default; None if there is none."""
    unit: int
    """Factor from this setting's unit to the topic setting's unit: 3,600,000 for ``log.retention.hours``."""
    rank: int
    """If one source has several names of one topic setting, the name with the lowest rank counts (Kafka's order)."""
    parse: Callable[[str], Mapping[str, Any]]
    """Returns fields of ``BrokerConfig`` or ``TopicConfig``. Raises: ValueError, which names the allowed values."""
    default: str
    documentation: str


@dataclass(frozen=True, slots=True)
class Source:
    """Texts by setting name from one place. ``label`` returns, for messages, how the user wrote a name."""

    values: Mapping[str, str]
    label: Callable[[str], str]


class Verdict(StrEnum):
    """The effect of a given setting."""

    EFFECTIVE = "effective"
    LOWERED = "lowered"
    """The setting asks for more replicas than there are brokers."""
    NO_MEANING = "no meaning"
    REFUSED = "refused"


class Reviewed(NamedTuple):
    """One setting of one source."""

    name: str
    label: str
    """The text of the user, and its source."""
    text: str | None
    """None for a secret."""
    verdict: Verdict
    why: str
    """A sentence; empty for a setting that takes effect."""


@dataclass(frozen=True, slots=True)
class Review:
    """The merged settings of all sources, and the verdict on each setting in them."""

    entries: Sequence[Reviewed]
    settings: Settings | None
    """None if anything is refused."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The merged settings of all sources."""

    broker: BrokerConfig
    origins: Mapping[str, str]
    """For people: where each setting that is not at its default was given, as in ``{"log.segment.bytes": "firn.toml"}``."""


def load(
    *,
    config_path: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, str | None] | None = None,
    assignments: Iterable[str] = (),
) -> Settings:
    """Settings of this process.

    Args:
        config_path: a TOML file, or one of Java's whose name ends with ``.properties``; None for none.
        environment: the process's environment; None for none.
        flags: text by flag (``--listen``); None for a flag that was not given.
        assignments: ``name=value`` texts of ``--set``, in order.

    Raises: ConfigError, one sentence that names the setting, the value, the allowed values and the nearest known name.
    """
    return resolve(
        sources_of(config_path=config_path, environment=environment, flags=flags, assignments=assignments),
    )


def sources_of(
    *,
    config_path: Path | None = None,
    environment: Mapping[str, str] | None = None,
    flags: Mapping[str, str | None] | None = None,
    assignments: Iterable[str] = (),
) -> list[Source]:
    """The sources of settings, the weakest first. Arguments as for ``load``. Raises: ConfigError."""
    sources = []
    if config_path is not None:
        sources.append(read_config_file(config_path))
    if environment is not None:
        sources.append(from_environment(environment))
    if flags is not None:
        given = {FLAGS[flag]: text for flag, text in flags.items() if text is not None}
        sources.append(Source(given, {name: flag for flag, name in FLAGS.items()}.__getitem__))
    sources.append(from_assignments(assignments))
    return sources


def resolve(sources: Iterable[Source]) -> Settings:
    """Merge the sources and check every value. Later sources override earlier ones.

    Raises: ConfigError for the first refused setting. It says how many other settings are refused.
    """
    outcome = review(sources)
    if outcome.settings is not None:
        return outcome.settings
    first, *others = [entry for entry in outcome.entries if entry.verdict is Verdict.REFUSED]
    more = ""
    if others:
        what = "Another setting is" if len(others) == 1 else f"{len(others)} other settings are"
        more = f" {what} refused too; `firn doctor --config FILE` lists all."
    raise ConfigError(first.why + more)


def review(sources: Iterable[Source]) -> Review:
    """The verdict on each setting of the sources. Later sources override earlier ones."""
    known = catalogue()
    broker: dict[str, Any] = {}
    topic: dict[str, Any] = {}
    origins: dict[str, str] = {}
    useless: dict[str, str] = {}
    listeners = _Listeners()
    entries: list[Reviewed] = []
    for source in sources:
        named: list[tuple[int, str, str, str]] = []
        for given, text in source.values.items():
            name = ALIASES.get(given, given)
            # Coarser names of one setting come first, so that the finer ones replace them; so do other spellings.
            rank = known[name].rank if name in known else 0
            named.append((-rank * 2 - (name != given), name, given, text))
        for _, name, given, text in sorted(named, key=lambda entry: entry[0]):
            label = source.label(given)
            aside = broker_setting_without_effect(name) if name not in known else None
            hidden = _secret(name) or (aside is not None and aside.definition.sensitive)
            try:
                if hidden and label.startswith("--"):
                    _check_no_secret(name, label, text)
                if aside is not None:
                    useless[name] = _set_aside(aside, label, text)
                    entries.append(
                        Reviewed(name, label, None if hidden else text, Verdict.NO_MEANING, _sentence(aside.reason))
                    )
                    continue
                if listeners.take(name, label, text):
                    origins[name] = label
                    entries.append(Reviewed(name, label, None if hidden else text, Verdict.EFFECTIVE, ""))
                    continue
                if name not in known:
                    raise unknown_name(given)
                setting = known[name]
                try:
                    values = setting.parse(text)
                except ValueError as error:
                    raise _not_allowed(name, label, text, error) from None
            except ConfigError as error:
                # A misspelt setting may be a secret, too.
                hidden = hidden or (aside is None and name not in known) or _has_login(name, text)
                entries.append(Reviewed(name, label, None if hidden else text, Verdict.REFUSED, str(error)))
                continue
            (topic if setting.topic_setting else broker).update(values)
            origins[name] = label
            if name in BROKER_IDLE:
                useless[name] = text
                entries.append(Reviewed(name, label, text, Verdict.NO_MEANING, _sentence(BROKER_IDLE[name])))
                continue
            entries.append(_effective(setting, label, text, values))
    problem: ConfigError | None = None
    settings: Settings | None = None
    try:
        broker.update(listeners.fields())
        broker["without_effect"] = tuple(sorted(useless.items()))
        if broker.get("firn_ephemeral"):
            _without_disk(broker, topic)
        config = _completed(replace(BrokerConfig(**broker), topic_defaults=TopicConfig(**topic)))
        check_broker_config(config)
        settings = Settings(config, origins)
    except ConfigError as error:
        problem = error
    refused = any(entry.verdict is Verdict.REFUSED for entry in entries)
    if problem is not None:
        entries.append(Reviewed("", "all together", "", Verdict.REFUSED, str(problem)))
    return Review(entries, None if refused else settings)


def _secret(name: str) -> bool:
    """Whether the text of a setting must not be shown."""
    prefixed = split_prefixed(name)
    return name in _SECRET or (
        prefixed is not None and (prefixed[1] in _SECRET or prefixed[1].partition(".")[2] in _SECRET)
    )


def _check_no_secret(name: str, label: str, text: str) -> None:
    """Raises: ConfigError, if the text of a secret setting came by a command line and has a secret."""
    if name == "firn.redis.url" and not _has_password(text):
        return
    prefixed = split_prefixed(name) is not None
    mend = "write it into a file (--config)"
    if not prefixed:
        mend += f", or into the environment variable {environment_name(name)}"
    raise ConfigError(f"{label} is not allowed: a command line can be read by every user of this machine; {mend}.")


def _has_password(url: str) -> bool:
    return "@" in url or "password" in url.lower()


def _sentence(clause: str) -> str:
    return f"{clause[:1].upper()}{clause[1:]}."


def _set_aside(entry: WithoutEffect, label: str, text: str) -> str:
    try:
        return checked_text(entry, text)
    except RequestRejected as error:
        raise _not_allowed(entry.definition.name, label, text, ValueError(_why(error, entry.definition.name))) from None


def _has_login(name: str, text: str) -> bool:
    """Whether an endpoint of traces may have a user and a password in its URL."""
    return name == "firn.tracing.endpoint" and "@" in text


def _not_allowed(name: str, label: str, text: str, error: ValueError) -> ConfigError:
    value = "" if _secret(name) or _has_login(name, text) else f" {text!r}"
    shown = f"{label}{value}" if name in label else f"{label}{value} ({name})"
    return ConfigError(f"{shown} is not allowed: {clause(error)}.")


def _effective(setting: Setting, label: str, text: str, values: Mapping[str, Any]) -> Reviewed:
    lowered = (setting.name in OF_REPLICAS or setting.topic_setting == IN_SYNC) and any(
        isinstance(value, int) and value > 1 for value in values.values()
    )
    return Reviewed(
        setting.name,
        label,
        None if setting.name in _SECRET else text,
        Verdict.LOWERED if lowered else Verdict.EFFECTIVE,
        "One broker can hold one replica, so the value is lowered to the number of brokers." if lowered else "",
    )


class _Listeners:
    """``listeners``, and the settings that are needed to read them. They may come from several sources."""

    def __init__(self) -> None:
        self._texts: dict[str, tuple[str, str]] = {}

    def take(self, name: str, label: str, text: str) -> bool:
        """Note a setting if it is one of these. Raises: ConfigError for a text that is wrong for any other settings."""
        prefixed = split_prefixed(name)
        if name not in LISTENER_SETTINGS and prefixed is None:
            return False
        setting = name if prefixed is None else prefixed[1]
        definition = definition_of_listener(setting) if prefixed else SECURITY_DEFINITIONS.get(setting)
        try:
            if name == "listener.security.protocol.map":
                protocols_by_name(text)
            elif definition is not None and not definition.sensitive:
                parse_value(definition, text, name=name)
        except ValueError as error:
            raise _not_allowed(name, label, text, error) from None
        except RequestRejected as error:
            raise _not_allowed(name, label, text, ValueError(_why(error, name))) from None
        self._texts[name] = (label, text)
        return True

    def fields(self) -> Mapping[str, Any]:
        """Fields of ``BrokerConfig``. Raises: ConfigError."""
        protocols = protocols_by_name(self._texts.get("listener.security.protocol.map", ("", ""))[1])
        names = self._texts.get("controller.listener.names", ("", "CONTROLLER"))[1]
        controllers = frozenset(name.strip().upper() for name in names.split(","))
        security = {
            name: text
            for name, (_, text) in self._texts.items()
            if name in SECURITY_DEFINITIONS or split_prefixed(name)
        }
        fields: dict[str, Any] = {"security": security} if security else {}
        listeners = [ListenerConfig(name=_PLAINTEXT)]
        for setting in ("listeners", "advertised.listeners"):
            if setting not in self._texts:
                continue
            label, text = self._texts[setting]
            try:
                entries = _addresses(text, controllers, protocols)
                if setting == "listeners":
                    listeners = [
                        ListenerConfig(
                            name=name, protocol=protocol_of(name, protocols), host=address.host, port=address.port
                        )
                        for name, address in entries
                    ]
                    _check_unlike(listeners)
                    continue
                listeners = _advertised(listeners, entries)
            except ValueError as error:
                raise _not_allowed(setting, label, text, error) from None
        for name in security:
            prefixed = split_prefixed(name)
            if prefixed is not None and prefixed[0] not in {one.name for one in listeners}:
                label, text = self._texts[name]
                raise ConfigError(
                    f"{label}: there is no listener {prefixed[0]}; listeners are {', '.join(one.name for one in listeners)}."
                )
        between = self._between_brokers(listeners)
        try:
            made = with_settings(listeners, security)
        except ValueError as error:
            raise ConfigError(f"{str(error)[:1].upper()}{str(error)[1:]}.") from None
        local = BrokerConfig(listeners=made, inter_broker_listener=between).local
        fields |= {"inter_broker_listener": between}
        if "listeners" in self._texts:
            fields |= {"listen_host": local.host, "listen_port": local.port}
        if local.advertised_host:
            fields |= {"advertised_host": local.advertised_host, "advertised_port": local.advertised_port}
        if len(made) > 1 or made[0].name != _PLAINTEXT or made[0].protocol is not SecurityProtocol.PLAINTEXT:
            fields["listeners"] = made
        return fields

    def _between_brokers(self, listeners: Sequence[ListenerConfig]) -> str:
        """The name of the listener between brokers. Raises: ConfigError."""
        label, name = self._texts.get("inter.broker.listener.name", ("", ""))
        if name.strip():
            if "security.inter.broker.protocol" in self._texts:
                raise ConfigError(
                    "inter.broker.listener.name and security.inter.broker.protocol say the same: take out the second."
                )
            if name.strip().upper() not in {one.name for one in listeners}:
                raise ConfigError(f"{label} {name!r} is not one of listeners; name one of them.")
            return name.strip().upper()
        asked = self._texts.get("security.inter.broker.protocol")
        protocol = SecurityProtocol(asked[1].strip().upper()) if asked is not None else SecurityProtocol.PLAINTEXT
        found = next((one.name for one in listeners if one.protocol is protocol), None)
        if found is None and asked is not None:
            raise ConfigError(f"{asked[0]} {asked[1]!r} is the protocol of no listener; name one with that protocol.")
        return found if found is not None else listeners[0].name


def _check_unlike(listeners: Sequence[ListenerConfig]) -> None:
    """Raises: ValueError, in the sense of Kafka's checks."""
    names = [one.name for one in listeners]
    if len(set(names)) != len(names):
        raise ValueError("each listener must have a different name")
    ports = [one.port for one in listeners if one.port]
    if len(set(ports)) != len(ports):
        raise ValueError("each listener must have a different port")


def _advertised(listeners: Sequence[ListenerConfig], entries: Sequence[tuple[str, Address]]) -> list[ListenerConfig]:
    """The listeners with the addresses that clients are given. Raises: ValueError."""
    for _, address in entries:
        if address.host in WILDCARDS:
            raise ValueError("clients cannot connect to a wildcard address")
    if len(listeners) == 1 and len(entries) == 1:
        entries = [(listeners[0].name, entries[0][1])]
    by_name = dict(entries)
    if len(by_name) != len(entries):
        raise ValueError("each listener must have one address")
    if len(listeners) == 1 and listeners[0].name not in by_name:
        raise ValueError(f"it must have one address for the listener {listeners[0].name}")
    strange = set(by_name) - {one.name for one in listeners}
    if len(listeners) > 1 and strange:
        raise ValueError(f"{', '.join(sorted(strange))} is not one of listeners")
    return [
        replace(one, advertised_host=by_name[one.name].host, advertised_port=by_name[one.name].port)
        if one.name in by_name
        else one
        for one in listeners
    ]


def _addresses(
    text: str, controllers: frozenset[str], protocols: Mapping[str, SecurityProtocol]
) -> list[tuple[str, Address]]:
    """Names and addresses of the listeners that clients use. Raises: ValueError."""
    found = []
    for entry in (part.strip() for part in text.split(",")):
        scheme, separator, rest = entry.partition("://")
        name = scheme.upper() if separator else _PLAINTEXT
        if separator and name in controllers:
            continue
        protocol_of(name, protocols)
        found.append((name, _address(rest if separator else entry)))
    if not found:
        raise ValueError("it has no listener for clients; write PLAINTEXT://HOST:PORT")
    return found


def read_config_file(path: Path) -> Source:
    """The settings of a TOML file, or of a Java properties file if its name ends with ``.properties``. Raises: ConfigError."""
    import tomllib

    if path.suffix == ".properties":
        return _read_properties(path)
    try:
        tables = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"--config {path} cannot be read: {error.strerror}.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"--config {path} is not valid TOML: {clause(error)}.") from None
    return Source(dict(_flattened(tables, "", path)), lambda name: f"{name} in {path}")


def _read_properties(path: Path) -> Source:
    try:
        # Java reads these files as Latin-1, in any locale.
        values = parse_properties(path.read_bytes().decode("latin-1"))
    except OSError as error:
        raise ConfigError(f"--config {path} cannot be read: {error.strerror}.") from None
    except ValueError as error:
        raise ConfigError(f"--config {path} is not a file of properties: {clause(error)}.") from None
    # Java's brokers strip values too.
    return Source({name: text.strip() for name, text in values.items()}, lambda name: f"{name} in {path}")


def from_environment(environment: Mapping[str, str]) -> Source:
    """The settings among ``FIRN_…`` variables. Raises: ConfigError for a variable that is not a setting."""
    by_variable = {environment_name(name): name for name in (*BROKER_WITHOUT_EFFECT, *catalogue(), *ALIASES)}
    values: dict[str, str] = {}
    for variable, text in environment.items():
        if not variable.startswith(PREFIX) or variable in _OWN_ENVIRONMENT or variable.startswith(CLIENT_PREFIX):
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


@cache
def catalogue() -> Mapping[str, Setting]:
    """Every setting of a broker by name."""
    settings = [
        Setting("firn.take.over", None, 1, 0, _parse_take_over, "false", "Take over a node id from another directory."),
        Setting(
            "firn.store.create",
            None,
            1,
            0,
            _parse_store_create,
            "false",
            "Make a new store of a missing or empty directory, where it is not clear that this is no file system to be mounted.",
        ),
        Setting(
            "listener.security.protocol.map",
            None,
            1,
            0,
            _parse_listeners,
            "PLAINTEXT:PLAINTEXT",
            "Security protocol of each name in listeners: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.",
        ),
        Setting(
            "controller.listener.names",
            None,
            1,
            0,
            _parse_listeners,
            "CONTROLLER",
            "Names in listeners that are not for clients. Firn does not listen there.",
        ),
    ]
    for definition in BROKER_DEFINITIONS.values():
        if definition.name in SECURITY_DEFINITIONS:
            shown = format_value(definition.default) or "none"
            settings.append(Setting(definition.name, None, 1, 0, _parse_listeners, shown, definition.documentation))
            continue
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


def parse_option(what: str, name: str, text: str) -> Any:
    """The value of a command's option that means the same as the broker's setting ``name``. ``what``: the option.

    Raises: ConfigError, whose sentence does not show ``text``.
    """
    try:
        (value,) = catalogue()[name].parse(text).values()
    except ValueError as error:
        raise ConfigError(f"{what} cannot have this value: {clause(error)} ({name}).") from None
    return value


def unknown_name(name: str) -> ConfigError:
    """The error for an unknown name."""
    definition = TOPIC_DEFINITIONS.get(name)
    if definition is not None and not definition.synonyms:
        return ConfigError(f"{name} is set per topic, and has no default of brokers.")
    if definition is not None:
        return ConfigError(f"{name} is set per topic; the broker's default for it is {definition.synonyms[0].name}.")
    names = [*catalogue(), *ALIASES]
    guesses = [guess for guess in (f"log.{name}", f"firn.{name}") if guess in names]
    nearest = guesses or get_close_matches(name, names, n=1, cutoff=0.7)
    hint = f" Did you mean {nearest[0]}?" if nearest else " `firn serve --list-settings` lists all of them."
    return ConfigError(f"There is no setting {name!r}.{hint}")


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
    """Fill in the values that follow from other settings. Raises: ConfigError."""
    for one in config.served:
        if not one.advertised_host and one.host in WILDCARDS:
            raise ConfigError(
                f"Listening on every interface ({one.host}) needs --advertise HOST:PORT: clients need an address that they can "
                f"connect to.{f' It is missing for {one.name}.' if len(config.listeners) > 1 else ''}"
            )
    if config.firn_quota_scope == "cluster" and config.redis_url is None:
        raise ConfigError(
            "firn.quota.scope=cluster needs a Redis that the brokers share: name it with firn.redis.url (--redis)."
        )
    if config.http_address != OFF and not config.open:
        _check_http(config)
    if config.http_address != OFF:
        read_tls(texts_of(config))
    if config.store_url:
        return config
    directory = Path(config.data_dir).absolute()
    return replace(config, store_url=directory.with_name(f"{directory.name}-store").as_uri())


def _without_disk(broker: dict[str, Any], topic: dict[str, Any]) -> None:
    """The settings that follow from ``firn.ephemeral``. Raises: ConfigError."""
    if topic.setdefault("firn_durability", Durability.OBJECT) is not Durability.OBJECT:
        raise ConfigError(
            f"firn.ephemeral (--ephemeral) leads only topics with firn.durability=object, and firn.durability is "
            f"{topic['firn_durability'].value}: leave one of the two out."
        )
    broker.setdefault("node_id", NODE_ID_AUTO)  # of the brokers before it, nothing is on this disk


def _check_http(config: BrokerConfig) -> None:
    """Raises: ConfigError if no caller could use HTTP, or all could with rights that are not theirs."""
    listener = config.http_listener
    anonymous = config.firn_http_anonymous_enable
    if anonymous and not config.firn_http_client_config and listener.protocol is not SecurityProtocol.PLAINTEXT:
        raise ConfigError(
            "firn.http.anonymous.enable needs the user whose rights requests get: name a file with it with firn.http.client.config."
        )
    if not listener.protocol.sasl:
        asks = any(one.client_auth is not ClientAuth.NONE for one in config.listeners)
        check_rights(by_certificate=asks, anonymous=anonymous)
        return
    if not anonymous and not listener.protocol.tls and not any(one.startswith("SCRAM-") for one in listener.mechanisms):
        raise ConfigError(
            f"No caller of HTTP could log in: listener {listener.name} offers {', '.join(listener.mechanisms)} without TLS, which "
            "whoever answers at its address could read. Offer SCRAM-SHA-512 too, use SASL_SSL, or turn HTTP off with --http off."
        )
    host = parse_address(config.http_address, what="firn.http.listen").host
    check_encrypted(host, encrypted=config.has_https or config.firn_http_plain_credentials_enable)
    check_origins(config.firn_http_allowed_origins)
    _check_named(config, listener)


def _check_named(config: BrokerConfig, listener: ListenerConfig) -> None:
    """Raises: ConfigError if the broker would not let its own HTTP process name callers, as far as that is known before a start."""
    own = {"": "127.0.0.1", "0.0.0.0": "127.0.0.1", "::": "::1"}.get(listener.host, listener.host)
    proxies = config.firn_trusted_proxies
    by_name = listener.protocol.tls and listener.advertised_host not in ("", listener.host)
    if proxies and not by_name and own not in Networks(proxies) and _is_address(own):
        raise ConfigError(
            f"firn.trusted.proxies has {', '.join(sorted(proxies))}, but not {own}, from where the HTTP process of this broker "
            "connects: no caller of HTTP could log in. Add it, or do not serve HTTP (firn.http.listen=off)."
        )


def _is_address(text: str) -> bool:
    try:
        read_address(text)
    except ValueError:
        return False
    return True


# --- reading values -------------------------------------------------------------------------------------------------


def _plain(definition: Definition, name: str, unit: int) -> Callable[[str], Mapping[str, Any]]:
    def parse(text: str) -> Mapping[str, Any]:
        try:
            value = parse_value(definition, text, name=name)
        except RequestRejected as error:
            raise ValueError(_why(error, name)) from None
        if unit != 1 and isinstance(value, int) and value >= 0:
            value *= unit
        return {definition.field: value}

    return parse


def _why(error: RequestRejected, name: str) -> str:
    # Kafka's sentence begins with the name and the value. Our message already has both.
    why = str(error).partition(f"for configuration {name}: ")[2] or str(error)
    return why[:1].lower() + why[1:].rstrip(".") if not why.startswith("Firn") else why.rstrip(".")


def _parse_take_over(text: str) -> Mapping[str, Any]:
    return {"take_over": _parse_boolean(text)}


def _parse_store_create(text: str) -> Mapping[str, Any]:
    return {"store_create": _parse_boolean(text)}


def _parse_boolean(text: str) -> bool:
    if text.strip().lower() not in ("true", "false"):
        raise ValueError("it must be true or false")
    return text.strip().lower() == "true"


def _parse_directory(text: str) -> Mapping[str, Any]:
    if not text.strip():
        raise ValueError("it must name a directory")
    if "," in text:
        raise ValueError("there can be only one directory")
    if "://" in text:
        raise ValueError("it must be a directory of this machine, as in /path; firn.store.url names the object store")
    return {"data_dir": text}


def _parse_store_url(text: str) -> Mapping[str, Any]:
    _check_store_url(text)
    return {"store_url": text}


def _parse_wal_store_url(text: str) -> Mapping[str, Any]:
    if text:
        _check_store_url(text)
    return {"wal_store_url": text}


def _check_store_url(text: str) -> None:
    """Raises: ValueError."""
    scheme, separator, rest = text.partition("://")
    if not separator or scheme not in ("file", "s3"):
        raise ValueError("it must be file:///path or s3://bucket/prefix")
    if scheme == "file" and not rest.startswith("/"):
        raise ValueError(f"a file URL has an absolute path, as in {Path(rest).absolute().as_uri()}")
    if scheme == "s3" and not re.match("[^/?]", rest):
        raise ValueError("it names no bucket")


def _parse_redis_url(text: str) -> Mapping[str, Any]:
    if not re.match(r"(rediss?|unix)://.", text):
        raise ValueError("it must be redis://HOST:PORT/DB, rediss://… or unix:///path")
    if find_spec("redis") is None:
        raise ValueError(f"the Redis client is not installed: run {install_hint('redis')}")
    return {"redis_url": text}


def _parse_log_key(text: str) -> Mapping[str, Any]:
    if text.strip():
        from app.metadata.log.log_proofs import parse_keys

        parse_keys(text)
    return {"firn_cluster_log_key": text}


def _parse_listeners(text: str) -> Mapping[str, Any]:
    raise AssertionError(f"listeners are read together: {text}")


def _parse_http(text: str) -> Mapping[str, Any]:
    return {"http_address": OFF if text.strip().lower() == OFF else str(_address(text))}


def _parse_allowed_hosts(text: str) -> Mapping[str, Any]:
    return {"firn_http_allowed_hosts": frozenset(parse_hosts(text))}


def _parse_allowed_origins(text: str) -> Mapping[str, Any]:
    return {"firn_http_allowed_origins": frozenset(parse_origins(text))}


def _parse_console_mask(text: str) -> Mapping[str, Any]:
    from app.http.console.records.masks import parse_masks

    return {"firn_console_mask": frozenset(f"{topics}:{field}" for topics, field in parse_masks(text.split(",")))}


def _parse_http_proxies(text: str) -> Mapping[str, Any]:
    return {"firn_http_trusted_proxies": frozenset(parse_networks(text))}


def _parse_proxies(text: str) -> Mapping[str, Any]:
    return {"firn_trusted_proxies": frozenset(parse_networks(text))}


def _address(text: str) -> Address:
    try:
        return parse_address(text, what="the address")
    except ConfigError as error:
        raise ValueError(str(error).rstrip(".")) from None


def _parse_notice_endpoint(text: str) -> Mapping[str, Any]:
    if text.strip() and not re.fullmatch(r"http://[^/?#\s]+/?", text.strip()):
        raise ValueError("it must be empty, or http://HOST or http://HOST:PORT")
    return {"firn_spot_notice_endpoint": text.strip()}


def _parse_tracing_endpoint(text: str) -> Mapping[str, Any]:
    if text.strip() and not re.fullmatch(r"https?://[^/?#\s]+(/[^?#\s]*)?", text.strip()):
        raise ValueError("it must be empty, or a URL such as http://localhost:4318/v1/traces")
    if _has_login("firn.tracing.endpoint", text):
        raise ValueError(
            "it is shown in lines and settings, so it may have no login and no @: put the login of the collector into "
            "OTEL_EXPORTER_OTLP_TRACES_HEADERS"
        )
    if text.strip():
        from app.machine.span_export import is_installed  # it brings asyncio in

        if not is_installed():
            raise ValueError(f"OpenTelemetry is not installed: run {install_hint('tracing')}")
    return {"firn_tracing_endpoint": text.strip()}


def _parse_node_id(text: str) -> Mapping[str, Any]:
    if text.strip().lower() == "auto":
        return {"node_id": NODE_ID_AUTO}
    try:
        return {"node_id": parse_value(BROKER_DEFINITIONS["node.id"], text, name="node.id")}
    except RequestRejected:
        raise ValueError("it must be a whole number from 0 on, or auto") from None


_SPECIAL: Final[Mapping[str, Callable[[str], Mapping[str, Any]]]] = {
    "node.id": _parse_node_id,
    "log.dirs": _parse_directory,
    "firn.store.url": _parse_store_url,
    "firn.wal.store.url": _parse_wal_store_url,
    "listeners": _parse_listeners,
    "advertised.listeners": _parse_listeners,
    "firn.http.listen": _parse_http,
    "firn.http.allowed.hosts": _parse_allowed_hosts,
    "firn.http.allowed.origins": _parse_allowed_origins,
    "firn.http.trusted.proxies": _parse_http_proxies,
    "firn.console.mask": _parse_console_mask,
    "firn.trusted.proxies": _parse_proxies,
    "firn.redis.url": _parse_redis_url,
    "firn.cluster.log.key": _parse_log_key,
    "firn.spot.notice.endpoint": _parse_notice_endpoint,
    "firn.tracing.endpoint": _parse_tracing_endpoint,
}
_DEFAULT_SHOWN: Final[Mapping[str, str]] = {
    "firn.store.url": "file://<log.dirs>-store",
    "advertised.listeners": "as listeners",
}
_PLAINTEXT: Final = "PLAINTEXT"
_SECRET: Final = frozenset(name for name, definition in BROKER_DEFINITIONS.items() if definition.sensitive)
