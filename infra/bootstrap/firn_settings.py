"""``bootstrap.json``: what the launch template says about a machine. Read strictly: what is not understood is refused by name.

Terraform writes it into the user data. It never comes from tags, which anybody with ``ec2:CreateTags`` can change.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

SETTINGS: Final = "/etc/firn/bootstrap.json"
AUTO: Final = "auto"
"""In place of a node id: the machine is one of many, and its broker has no disk that matters (ADR 0037, J47)."""

EFFECT_OF_BOOTSTRAP: Final = {
    "node.id": "node_id",
    "broker.id": "node_id",
    "log.dirs": "the data volume",
    "log.dir": "the data volume",
    "firn.data.dir": "the data volume",
    "firn.store.url": "store",
    "firn.store": "store",
    "listeners": "the security group, which knows one port",
    "firn.listen": "the security group, which knows one port",
    "advertised.listeners": "advertised",
    "firn.advertise": "advertised",
    "firn.http.listen": "http",
    "firn.http": "http",
    "broker.rack": "zone",
    "firn.rack": "zone",
    "firn.instance.id": "the instance metadata",
    "firn.take.over": "what EC2 says of the old machine",
    "firn.ephemeral": "node_id",
    "firn.spot.notice.endpoint": "the instance metadata",
}
"""Settings of the broker that the first boot decides, and from what. They may not be among ``settings``."""
EFFECT_OF_SECURITY: Final = (
    "listener.security.protocol.map",
    "inter.broker.listener.name",
    "security.inter.broker.protocol",
    "ssl.keystore.type",
    "ssl.keystore.location",
    "ssl.keystore.key",
    "ssl.keystore.certificate.chain",
    "ssl.truststore.type",
    "ssl.truststore.location",
    "ssl.truststore.certificates",
    "authorizer.class.name",
    "firn.http.ssl.keystore.location",
)
"""Further ones that the first boot decides if there is ``security``."""

ENDPOINTS: Final = ("imds", "ec2", "s3", "autoscaling", "secretsmanager")
"""What a rehearsal has substitutes for."""

DRAIN_S_MAX: Final = 12_000.0
"""How long the auto-scaling group can hold a machine that drains: AWS ends a hook after 100 times its heartbeat time-out, 120 s.

The old machine's agent may drain for so long, and the next machine waits for the volume a little longer.
"""


class Refused(Exception):
    """The boot stops here. The text says what was found and how to mend it."""


class SettingsError(Refused):
    """``bootstrap.json`` is not of the shape that this version reads."""


@dataclass(frozen=True, slots=True)
class Wheelhouse:
    bucket: str
    key: str
    sha256: str


@dataclass(frozen=True, slots=True)
class Data:
    kind: str
    volume_id: str
    filesystem: str


@dataclass(frozen=True, slots=True)
class Lifecycle:
    autoscaling_group: str
    launch_hook: str
    terminate_hook: str
    heartbeat_s: int


@dataclass(frozen=True, slots=True)
class Security:
    """TLS, logins and rules."""

    secret: str
    """ARN of the secret of Secrets Manager with the brokers' key and first users; empty for ``http``, which needs no secret."""
    authority: str
    """PEM of the certificates that brokers are known by."""


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """``s3://bucket/prefix?region=…&endpoint=…``"""

    bucket: str
    prefix: str
    """Empty, or with a slash at its end."""
    region: str
    endpoint: str

    @property
    def name(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")


@dataclass(frozen=True, slots=True)
class Settings:
    """``bootstrap.json``, version 1. The launch template writes it."""

    role: str
    cluster: str
    node_id: int
    """-1 if it is ``auto``."""
    region: str
    zone: str
    store: str
    wheelhouse: Wheelhouse | None
    data: Data | None
    accept_loss_of_untiered: bool
    advertised_host: str
    advertised_port: int
    http_enabled: bool
    http_port: int
    broker: Mapping[str, str]
    lifecycle: Lifecycle | None
    endpoints: Mapping[str, str] = field(default_factory=dict)
    security: Security | None = None
    """None: everybody who reaches the broker may do everything."""
    without_disk: bool = False
    """Whether ``node_id`` is ``auto``: whatever is on this machine may be lost with it."""

    @property
    def own_address(self) -> bool:
        """Whether clients and brokers are told the machine's own address, which changes with the machine."""
        return self.role == "broker" and not self.advertised_host

    @property
    def one_of_several(self) -> bool:
        """Whether the broker has a node id and a disk, and others beside it have replicas of what is there."""
        return self.own_address and not self.without_disk

    @property
    def store_url(self) -> StoreUrl:
        parts = urlsplit(self.store)
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        prefix = parts.path.strip("/")
        return StoreUrl(
            bucket=parts.netloc,
            prefix=f"{prefix}/" if prefix else "",
            region=options.get("region", self.region),
            endpoint=options.get("endpoint", ""),
        )


def read_settings(path: Path) -> Settings:
    """The settings of this machine. Raises: SettingsError, OSError."""
    try:
        text = path.read_bytes().decode()
    except UnicodeDecodeError as error:
        raise SettingsError(f"bootstrap.json is not UTF-8 text: {error}. Correct the launch template.") from error
    return parse_settings(text)


def parse_settings(text: str) -> Settings:
    """Read ``bootstrap.json``. Anything unknown, missing or of another type is refused. Raises: SettingsError."""
    try:
        raw = json.loads(text, object_pairs_hook=_once)
    except ValueError as error:
        raise SettingsError(f"bootstrap.json is not JSON: {error}.") from error
    top = _Fields(raw, "")
    version = top.integer("version", 1, 1 << 31)
    if version != 1:
        raise SettingsError(f"bootstrap.json has version {version}; this release reads version 1.")
    role = top.choice("role", ("broker", "http"))
    broker_role = role == "broker"
    wheelhouse = top.optional_object("wheelhouse")
    data = top.optional_object("data")
    lifecycle = top.optional_object("lifecycle")
    advertised = top.optional_object("advertised")
    # A launch template of before has no such field.
    security = top.optional_object("security") if top.has("security") else None
    web = top.object("http")
    endpoints = top.strings("endpoints")
    for name, url in endpoints.items():
        if name not in ENDPOINTS or not re.fullmatch(r"https?://[^\s/]+", url):
            raise SettingsError(f"bootstrap.json: endpoints.{name} must be {' or '.join(ENDPOINTS)}, and an http URL.")
    without_disk = broker_role and top.says("node_id", AUTO)
    node_id = -1 if without_disk else top.integer("node_id", 0, (1 << 31) - 1, optional=not broker_role)
    settings = Settings(
        role=role,
        cluster=top.text("cluster", r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}"),
        node_id=node_id,
        region=top.text("region", r"[a-z]{2}(-[a-z]+)+-\d"),
        zone=top.nothing("zone") if without_disk else top.text("zone", r"[a-z]{2}(-[a-z]+)+-\d[a-z]|[a-z0-9-]+"),
        store=top.text(
            "store", r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[^\s?#]*)?(\?[^\s#]*)?", optional=not broker_role
        ),
        wheelhouse=None
        if wheelhouse is None
        else Wheelhouse(
            wheelhouse.text("bucket", r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]"),
            wheelhouse.text("key", r"\S(.*\S)?"),
            wheelhouse.text("sha256", r"[0-9a-f]{64}"),
        ),
        data=None if data is None else _data(data),
        accept_loss_of_untiered=top.flag("accept_loss_of_untiered"),
        advertised_host="" if advertised is None else advertised.text("host", r"[A-Za-z0-9.:_-]+"),
        advertised_port=9092 if advertised is None else advertised.integer("port", 1, 65535),
        http_enabled=web.flag("enabled"),
        http_port=web.integer("port", 1, 65535),
        broker=top.strings("settings"),
        lifecycle=None
        if lifecycle is None
        else Lifecycle(
            lifecycle.text("autoscaling_group", r"\S(.*\S)?"),
            lifecycle.text("launch_hook", r"\S*", optional=True),
            lifecycle.text("terminate_hook", r"\S*", optional=True),
            lifecycle.integer("heartbeat_s", 1, 7200),
        ),
        endpoints=endpoints,
        security=None
        if security is None
        else Security(
            security.text("secret", r"arn:[a-z-]+:secretsmanager:[a-z0-9-]+:\d{12}:secret:\S+")
            if broker_role
            else security.nothing("secret"),
            security.text("ca_pem", r"-----BEGIN CERTIFICATE-----\n[\x20-\x7e\n]+"),
        ),
        without_disk=without_disk,
    )
    for fields in (top, wheelhouse, data, lifecycle, advertised, security, web):
        if fields is not None:
            fields.nothing_else()
    _check_together(settings)
    return settings


def _data(fields: _Fields) -> Data:
    kind = fields.choice("kind", ("ebs", "instance-store", "root"))
    ebs = kind == "ebs"
    return Data(
        kind=kind,
        volume_id=fields.text("volume_id", r"vol-[0-9a-f]{8,17}", optional=not ebs)
        if ebs
        else fields.nothing("volume_id"),
        filesystem=fields.choice("filesystem", ("ext4", "xfs")),
    )


def _check_together(settings: Settings) -> None:
    if settings.zone and not settings.zone.startswith(settings.region):
        raise SettingsError(f"bootstrap.json: zone {settings.zone} is not in region {settings.region}.")
    for name, value in settings.broker.items():
        if re.search(r"[\x00-\x08\x0a-\x1f\x7f]", name + value) or not name.strip():
            raise SettingsError(f"bootstrap.json: setting {name!r} has a control character in its name or value.")
    if settings.role == "http":
        if settings.data is not None:
            raise SettingsError("bootstrap.json: role http has no data volume; data must be null.")
        unknown = sorted(set(settings.broker) - set(HTTP_SETTINGS))
        if unknown or not settings.broker.get("bootstrap.servers"):
            raise SettingsError(
                "bootstrap.json: settings of role http must have bootstrap.servers, and may have "
                f"{', '.join(HTTP_SETTINGS[1:])}" + (f"; it has {', '.join(unknown)}" if unknown else "") + "."
            )
        return
    if settings.data is None or (settings.advertised_host and settings.without_disk):
        raise SettingsError(
            "bootstrap.json: role broker needs data, and advertised must be null (the machine's own address) if node_id is auto."
        )
    if settings.without_disk and settings.data.kind == "ebs":
        raise SettingsError("bootstrap.json: node_id auto has no volume; data.kind must be root or instance-store.")
    if settings.data.kind == "root" and not settings.without_disk:
        raise SettingsError(
            "bootstrap.json: data.kind root is for node_id auto; a broker with a node id needs a disk of its own."
        )
    if settings.data.kind == "instance-store" and not settings.accept_loss_of_untiered and not settings.without_disk:
        raise SettingsError(
            "bootstrap.json: an instance store loses un-tiered records, committed offsets, transactional ids and compacted topics "
            "with its machine; set accept_loss_of_untiered, or use an EBS volume."
        )
    check_free("bootstrap.json: settings", settings.broker, secured=settings.security is not None)


def check_free(where: str, values: Mapping[str, str], *, secured: bool) -> None:
    """Raises: SettingsError if settings of a broker have one that the first boot decides."""
    for name, owner in EFFECT_OF_BOOTSTRAP.items():
        if name in values:
            raise SettingsError(f"{where} must not have {name}; it comes from {owner}.")
    for name in values if secured else ():
        if name in EFFECT_OF_SECURITY or name.startswith("listener.name.brokers."):
            raise SettingsError(f"{where} must not have {name}; it comes from security.")


HTTP_SETTINGS: Final = ("bootstrap.servers", "firn.http.allowed.hosts", "firn.http.allowed.origins")
"""What ``settings`` may hold on a machine that serves HTTP alone."""


class _Fields:
    """One JSON object that is read field by field; what was not read is refused."""

    def __init__(self, raw: object, where: str) -> None:
        if not isinstance(raw, dict):
            raise SettingsError(f"bootstrap.json: {where.rstrip('.') or 'it'} must be an object.")
        self._raw: dict[str, Any] = raw
        self._where = where
        self._read: set[str] = set()

    def _take(self, name: str) -> Any:
        self._read.add(name)
        if name not in self._raw:
            raise SettingsError(f"bootstrap.json: {self._where}{name} is missing.")
        return self._raw[name]

    def text(self, name: str, pattern: str, *, optional: bool = False) -> str:
        value = self._take(name)
        if optional and value in (None, ""):
            return ""
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            raise SettingsError(f"bootstrap.json: {self._where}{name} is {json.dumps(value)}, which is not allowed.")
        return value

    def has(self, name: str) -> bool:
        return name in self._raw

    def says(self, name: str, value: str) -> bool:
        """Whether a field has this value. It may have another one."""
        return bool(self._take(name) == value)

    def nothing(self, name: str) -> str:
        self._read.add(name)
        if self._raw.get(name) not in (None, ""):
            raise SettingsError(f"bootstrap.json: {self._where}{name} must be null here.")
        return ""

    def choice(self, name: str, allowed: Sequence[str]) -> str:
        value = self._take(name)
        if value not in allowed:
            raise SettingsError(
                f"bootstrap.json: {self._where}{name} is {json.dumps(value)}; it must be {' or '.join(allowed)}."
            )
        return str(value)

    def integer(self, name: str, low: int, high: int, *, optional: bool = False) -> int:
        value = self._take(name)
        if optional and value is None:
            return low
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise SettingsError(
                f"bootstrap.json: {self._where}{name} is {json.dumps(value)}; it must be a whole number from {low} to {high}."
            )
        return value

    def flag(self, name: str) -> bool:
        value = self._take(name)
        if not isinstance(value, bool):
            raise SettingsError(f"bootstrap.json: {self._where}{name} must be true or false.")
        return value

    def object(self, name: str) -> _Fields:
        return _Fields(self._take(name), f"{self._where}{name}.")

    def optional_object(self, name: str) -> _Fields | None:
        return None if self._take(name) is None else self.object(name)

    def strings(self, name: str) -> Mapping[str, str]:
        value = self._take(name)
        if not isinstance(value, dict) or not all(isinstance(one, str) for one in value.values()):
            raise SettingsError(f"bootstrap.json: {self._where}{name} must be an object of texts.")
        return dict(value)

    def nothing_else(self) -> None:
        unknown = sorted(set(self._raw) - self._read)
        if unknown:
            raise SettingsError(f"bootstrap.json: {self._where}{unknown[0]} is not known to this release.")


def _once(pairs: Sequence[tuple[str, object]]) -> dict[str, object]:
    found: dict[str, object] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{name} is there twice")
        found[name] = value
    return found
