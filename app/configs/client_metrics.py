"""Subscriptions to the metrics of clients, by Kafka's names (resource type CLIENT_METRICS, KIP-714). Pure.

A subscription says which metrics are wanted, how often, and of which clients. The cluster log stores its settings, like those of
groups. A subscription without settings does not exist.

Tests: ``tests/telemetry/test_clients.py``, ``tests/handlers/test_telemetry.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from app.configs.definition import ConfigSource, Definition
from app.configs.describing import DescribedConfig, SourcedValue
from app.configs.kinds import ConfigType
from app.configs.values import format_value, parse_value
from app.core.errors import ErrorCode, RequestRejected
from app.core.limits import REGEX_PROGRAM_SIZE_MAX

METRICS, INTERVAL_MS, MATCH = "metrics", "interval.ms", "match"
ALL_METRICS: Final = "*"
INTERVAL_MS_DEFAULT: Final = 300_000
INTERVAL_MS_MIN, INTERVAL_MS_MAX = 100, 3_600_000

SUBSCRIPTIONS_MAX: Final = 100
"""Subscriptions of a cluster. A client is matched with each of them at its first request, and after each change."""
SUBSCRIPTION_NAME_MAX: Final = 249
"""Characters of the name of a subscription."""
PATTERN_CHARACTERS_MAX: Final = 256
PREFIXES_MAX: Final = 100
"""Prefixes of metrics in a subscription. Those of all subscriptions of a client are united and sorted in one turn of the loop."""
TEXT_CHARACTERS_MAX: Final = 8192
"""Characters of a setting."""
MATCHED_CHARACTERS_MAX: Final = 256
"""Characters of a fact about a client that a pattern sees: the first ones. A client id may have 32,767 bytes."""
PROGRAM_BYTES_MAX: Final = 1 << 16
"""Memory limit of RE2 for one pattern."""
PATTERNS_KEPT_MAX: Final = 6 * SUBSCRIPTIONS_MAX

CLIENT_FIELDS: Final = (
    "client_instance_id",
    "client_id",
    "client_software_name",
    "client_software_version",
    "client_source_address",
    "client_source_port",
)
"""The facts that a pattern can match."""

DEFINITIONS: Final[Mapping[str, Definition]] = MappingProxyType(
    {
        one.name: one
        for one in (
            Definition(
                name=INTERVAL_MS,
                type=ConfigType.INT,
                field="",
                default=INTERVAL_MS_DEFAULT,
                documentation="Metrics push interval in milliseconds.",
            ),
            Definition(
                name=MATCH,
                type=ConfigType.LIST,
                field="",
                default=frozenset(),
                documentation="Criteria that a client must match: name=regular expression (RE2), with these names: "
                f"{', '.join(CLIENT_FIELDS)}. Without any, all clients match.",
            ),
            Definition(
                name=METRICS,
                type=ConfigType.LIST,
                field="",
                default=frozenset(),
                documentation="Prefixes of the names of the wanted metrics; * for all metrics.",
            ),
        )
    }
)


class Client(NamedTuple):
    """The facts about a client that patterns match, in the order of ``CLIENT_FIELDS``."""

    instance_id: str
    client_id: str
    software_name: str
    software_version: str
    address: str
    port: str


class Subscription(NamedTuple):
    """The wanted metrics of the clients that match all patterns."""

    metrics: frozenset[str]
    """Prefixes of names, or ``ALL_METRICS``."""
    interval_ms: int
    patterns: tuple[tuple[int, Any], ...]
    """Place of a field in ``Client``, and the compiled pattern that its whole text must match."""

    def matches(self, client: Client) -> bool:
        """Whether the subscription is for that client."""
        return all(pattern.fullmatch(client[place]) is not None for place, pattern in self.patterns)


class Wanted(NamedTuple):
    """The metrics that one client is to push."""

    metrics: tuple[str, ...]
    """Prefixes of names, sorted; ``ALL_METRICS`` alone for all; nothing if no metrics are wanted."""
    interval_ms: int

    def wants(self, name: str) -> bool:
        """Whether a metric of that name is wanted."""
        return self.metrics == (ALL_METRICS,) or name.startswith(self.metrics)


def validate_client_metrics(overrides: Mapping[str, str]) -> None:
    """Raises: RequestRejected INVALID_REQUEST for an unknown name or an interval out of range, INVALID_CONFIG for a bad value."""
    for name, text in overrides.items():
        definition = DEFINITIONS.get(name)
        if definition is None:
            raise RequestRejected(ErrorCode.INVALID_REQUEST, f"Unknown client metrics configuration: {name}.")
        if len(text) > TEXT_CHARACTERS_MAX:
            raise RequestRejected(
                ErrorCode.INVALID_CONFIG,
                f"The value of {name} has {len(text)} characters, of {TEXT_CHARACTERS_MAX} at most.",
            )
        value = parse_value(definition, text)
        if isinstance(value, int) and not INTERVAL_MS_MIN <= value <= INTERVAL_MS_MAX:
            raise RequestRejected(
                ErrorCode.INVALID_REQUEST,
                f"Invalid value {value} for {name}, interval must be between {INTERVAL_MS_MIN} and {INTERVAL_MS_MAX} (1 hour).",
            )
    subscription_of(overrides)


def subscription_of(overrides: Mapping[str, str]) -> Subscription:
    """The subscription with these settings.

    Raises: RequestRejected INVALID_CONFIG for a pattern that is not valid, or too many prefixes.
    """
    metrics = frozenset(_items(overrides.get(METRICS, "")))
    if len(metrics) > PREFIXES_MAX:
        raise RequestRejected(
            ErrorCode.INVALID_CONFIG,
            f"The value of {METRICS} has {len(metrics)} prefixes, of {PREFIXES_MAX} at most. Use shorter prefixes.",
        )
    interval_ms = overrides.get(INTERVAL_MS)
    patterns: dict[int, Any] = {}
    for criterion in _items(overrides.get(MATCH, "")):
        name, _, pattern = criterion.partition("=")
        if name.strip() not in CLIENT_FIELDS or not pattern.strip() or "=" in pattern:
            raise _illegal(criterion)
        patterns[CLIENT_FIELDS.index(name.strip())] = _compiled(criterion, pattern.strip())
    return Subscription(
        metrics,
        INTERVAL_MS_DEFAULT if interval_ms is None else int(interval_ms.strip()),
        tuple(patterns.items()),
    )


def wanted_of(subscriptions: Iterable[Subscription], client: Client) -> Wanted:
    """The metrics that a client is to push, by all subscriptions that it matches; the shortest of their intervals.

    Patterns see the first ``MATCHED_CHARACTERS_MAX`` characters of each fact about the client.
    """
    client = Client(*[fact[:MATCHED_CHARACTERS_MAX] for fact in client])
    metrics: set[str] = set()
    interval_ms = INTERVAL_MS_DEFAULT
    for one in subscriptions:
        if one.matches(client):
            metrics |= one.metrics
            interval_ms = min(interval_ms, one.interval_ms)
    return Wanted((ALL_METRICS,) if ALL_METRICS in metrics else tuple(sorted(metrics)), interval_ms)


def describe_client_metrics(overrides: Mapping[str, str]) -> list[DescribedConfig]:
    """Every setting of a subscription, by name. Defaults are no synonyms, as in Kafka."""
    described = []
    for name, definition in DEFINITIONS.items():
        value, source = format_value(definition.default), ConfigSource.DEFAULT_CONFIG
        said = []
        if name in overrides:
            text = overrides[name]
            value = ",".join(_items(text)) if definition.type is ConfigType.LIST else text.strip()
            source = ConfigSource.DYNAMIC_CLIENT_METRICS_CONFIG
            said = [SourcedValue(name, value, source)]
        described.append(DescribedConfig(definition, name, value, source, False, said))
    return described


def _items(text: str) -> list[str]:
    return [item for part in text.split(",") if (item := part.strip())]


def _illegal(criterion: str) -> RequestRejected:
    return RequestRejected(ErrorCode.INVALID_CONFIG, f"Illegal client matching pattern: {criterion[:80]}.")


@lru_cache(maxsize=PATTERNS_KEPT_MAX)
def _compiled(criterion: str, pattern: str) -> Any:
    import re2  # it takes as long to load as a quarter of everything else at start

    if len(pattern) > PATTERN_CHARACTERS_MAX:
        raise _illegal(criterion)
    options = re2.Options()
    options.log_errors = False
    options.max_mem = PROGRAM_BYTES_MAX
    try:
        compiled = re2.compile(pattern, options)
    except re2.error:
        raise _illegal(criterion) from None
    if compiled.programsize > REGEX_PROGRAM_SIZE_MAX:
        raise _illegal(criterion)
    return compiled
