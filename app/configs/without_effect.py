"""Settings of Apache Kafka that have no effect in Firn, with the reason, and settings that Firn refuses.

Together with ``broker_definitions.py`` and ``topic_definitions.py`` these tables name every setting of Apache Kafka 4.3.1. Each
setting

- takes effect under its name,
- or is accepted without effect: it is kept, described and named in one warning,
- or is refused, because its user relies on a behaviour that Firn does not have.

A few settings without effect are in ``topic_definitions.py``, with ``idle``. DescribeConfigs always shows these, because their
defaults describe Firn's behaviour.

A line of a table is ``name type default [least..[most]] [dynamic | per-broker]``. ``-`` means no default and ``''`` an empty
default. As in Kafka, ``dynamic`` settings can be altered while a broker runs, and ``per-broker`` settings for one broker at a
time.

Tests: ``tests/cli/test_kafka_settings.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from app.configs.broker import BrokerConfig
from app.configs.definition import Definition
from app.configs.kinds import ConfigType, Importance, Update, Value
from app.configs.topic_definitions import BROKER_IDLE, TOPIC_IDLE
from app.configs.values import parse_value
from app.core.errors import ErrorCode, RequestRejected, clause


class WithoutEffect(NamedTuple):
    """A setting that has no effect in Firn."""

    definition: Definition
    reason: str
    """Why the setting has no effect: a clause that follows a colon."""
    harmless: tuple[Value, ...] | None = None
    """The values that are accepted; None for all."""
    refusal: str = ""
    """The reason why other values are refused, and the mend."""


_TYPES: Final = {kind.name.lower(): kind for kind in ConfigType}
_UPDATES: Final = {"dynamic": Update.CLUSTER_WIDE, "per-broker": Update.PER_BROKER}


def _read(line: str, reason: str, harmless: tuple[str, ...] | None = None, refusal: str = "") -> WithoutEffect:
    name, kind, default, *more = line.split()
    minimum: float | None = None
    maximum: float | None = None
    update = Update.READ_ONLY
    for word in more:
        if word in _UPDATES:
            update = _UPDATES[word]
        else:
            least, most = word.split("..")
            minimum, maximum = _number(least), _number(most)
    definition = Definition(
        name=name,
        type=_TYPES[kind],
        field="",
        default=None if default in ("-", "''") else default,
        documentation=f"Without effect: {reason}." + (f" Other values are refused: {refusal}." if refusal else ""),
        importance=Importance.LOW,
        update=update,
        minimum=minimum,
        maximum=maximum,
    )
    values = None if harmless is None else tuple(parse_value(definition, text) for text in harmless)
    return WithoutEffect(definition, reason, values, refusal)


def _number(text: str) -> float | None:
    return None if not text else float(text) if "." in text else int(text)


def _refused(line: str, harmless: str, refusal: str) -> WithoutEffect:
    """A setting of which one value describes Firn's behaviour in any case."""
    return _read(line, "this is what Firn does in any case", (harmless,), refusal)


_NO_STREAMS: Final = "groups of the streams protocol are not coordinated; Streams applications use the classic protocol"
_NO_JAVA: Final = "Firn runs no Java classes, so this class would have no effect: remove the line"


def _group(reason: str, lines: str) -> list[WithoutEffect]:
    return [_read(line, reason) for line in lines.strip().splitlines()]


def _named(*groups: Iterable[WithoutEffect]) -> Mapping[str, WithoutEffect]:
    return MappingProxyType({entry.definition.name: entry for group in groups for entry in group})


BROKER_WITHOUT_EFFECT: Final = _named(
    _group(
        "a broker is one event loop: there are no pools of threads to size",
        """
        background.threads int 10 1.. dynamic
        group.coordinator.background.threads int 2 1..
        group.coordinator.threads int 4 1..
        num.io.threads int 8 1.. dynamic
        num.network.threads int 3 1.. dynamic
        num.recovery.threads.per.data.dir int 2 1.. dynamic
        num.replica.alter.log.dirs.threads int -
        queued.max.requests int 500 1..
        remote.log.manager.copier.thread.pool.size int 10 1.. dynamic
        remote.log.manager.expiration.thread.pool.size int 10 1.. dynamic
        remote.log.manager.follower.thread.pool.size int 2 1.. dynamic
        remote.log.manager.thread.pool.size int 2 1..
        remote.log.reader.max.pending.tasks int 100 1..
        remote.log.reader.threads int 10 1.. dynamic
        share.coordinator.threads int 1 1..
        """,
    ),
    _group(
        "the cluster's metadata is a log in the object store: there is no quorum of controllers",
        """
        controller.performance.always.log.threshold.ms long 2000 0..
        controller.performance.sample.period.ms long 60000 100..
        controller.quorum.append.linger.ms int 25 0..
        controller.quorum.auto.join.enable boolean false
        controller.quorum.bootstrap.servers list ''
        controller.quorum.election.backoff.max.ms int 1000 0..
        controller.quorum.election.timeout.ms int 1000 0..
        controller.quorum.fetch.max.bytes int 1048576 1..
        controller.quorum.fetch.snapshot.max.bytes int 1048576 1..
        controller.quorum.fetch.timeout.ms int 2000 0..
        controller.quorum.request.timeout.ms int 2000 0..
        controller.quorum.retry.backoff.ms int 20 0..
        controller.quorum.voters list ''
        controller.socket.timeout.ms int 30000
        early.start.listeners list -
        initial.broker.registration.timeout.ms int 60000
        internal.metadata.delete.delay.millis long 60000
        internal.metadata.log.segment.bytes int -
        internal.metadata.max.batch.size.in.bytes int 8388608
        metadata.log.dir string -
        metadata.log.max.record.bytes.between.snapshots long 20971520 1..
        metadata.log.max.snapshot.interval.ms long 3600000 0..
        metadata.log.segment.bytes int 1073741824 8388608..
        metadata.log.segment.ms long 604800000
        metadata.max.idle.interval.ms int 500 0..
        metadata.max.retention.bytes long 104857600
        metadata.max.retention.ms long 604800000
        server.max.startup.time.ms long 9223372036854775807 0..
        unstable.api.versions.enable boolean false
        unstable.feature.versions.enable boolean false
        """,
    ),
    _group(
        "brokers of a cluster fetch from each other in their own way",
        """
        add.partitions.to.txn.retry.backoff.max.ms int 100 0..
        add.partitions.to.txn.retry.backoff.ms int 20 1..
        controlled.shutdown.enable boolean true
        follower.fetch.last.tiered.offset.enable boolean false dynamic
        group.share.initialize.retry.interval.ms int 30000 1..
        group.share.persister.class.name string org.apache.kafka.server.share.persister.DefaultStatePersister
        num.replica.fetchers int 1 1.. dynamic
        replica.fetch.backoff.ms int 1000 0..
        replica.fetch.max.bytes int 1048576 0..
        replica.fetch.min.bytes int 1
        replica.fetch.response.max.bytes int 10485760 0..
        replica.fetch.wait.max.ms int 500
        replica.socket.receive.buffer.bytes int 65536
        replica.socket.timeout.ms int 30000
        request.timeout.ms int 30000
        share.coordinator.write.timeout.ms int 5000 1..
        socket.connection.setup.timeout.max.ms long 30000
        socket.connection.setup.timeout.ms long 10000
        unclean.leader.election.interval.ms long 300000 1..
        """,
    ),
    _group(
        "a broker has one data directory",
        """
        alter.log.dirs.replication.quota.window.num int 11 1..
        alter.log.dirs.replication.quota.window.size.seconds int 1 1..
        cordoned.log.dirs list '' per-broker
        log.dir.failure.timeout.ms long 30000 1..
        replica.alter.log.dirs.io.max.bytes.per.second long 9223372036854775807 0.. dynamic
        """,
    ),
    _group(
        "the tier is part of Firn and always there: firn.store.url names it, remote.storage.enable turns it off for a topic",
        """
        remote.list.offsets.request.timeout.ms long 30000 1.. dynamic
        remote.log.index.file.cache.total.size.bytes long 1073741824 1.. dynamic
        remote.log.index.file.cache.ttl.ms long 900000 -1..
        remote.log.manager.copy.max.bytes.per.second long 9223372036854775807 1.. dynamic
        remote.log.manager.copy.quota.window.num int 11 1..
        remote.log.manager.copy.quota.window.size.seconds int 1 1..
        remote.log.manager.fetch.max.bytes.per.second long 9223372036854775807 1.. dynamic
        remote.log.manager.fetch.quota.window.num int 11 1..
        remote.log.manager.fetch.quota.window.size.seconds int 1 1..
        remote.log.manager.task.retry.backoff.max.ms long 30000 1..
        remote.log.manager.task.retry.backoff.ms long 500 1..
        remote.log.manager.task.retry.jitter double 0.2 0..0.5
        remote.log.metadata.custom.metadata.max.bytes int 128 0..
        remote.log.metadata.manager.class.name string -
        remote.log.metadata.manager.class.path string -
        remote.log.metadata.manager.impl.prefix string rlmm.config.
        remote.log.metadata.manager.listener.name string -
        remote.log.storage.manager.class.name string -
        remote.log.storage.manager.class.path string -
        remote.log.storage.manager.impl.prefix string rsm.config.
        remote.log.storage.system.enable boolean false
        """,
    ),
    _group(
        "OpenSSL serves TLS here, and Firn itself SASL without Kerberos",
        """
        sasl.client.callback.handler.class class -
        sasl.kerberos.kinit.cmd string /usr/bin/kinit per-broker
        sasl.kerberos.min.time.before.relogin long 60000 per-broker
        sasl.kerberos.principal.to.local.rules list DEFAULT per-broker
        sasl.kerberos.service.name string - per-broker
        sasl.kerberos.ticket.renew.jitter double 0.05 per-broker
        sasl.kerberos.ticket.renew.window.factor double 0.8 per-broker
        sasl.login.callback.handler.class class -
        sasl.login.class class -
        sasl.login.connect.timeout.ms int -
        sasl.login.read.timeout.ms int -
        sasl.login.refresh.buffer.seconds short 300 per-broker
        sasl.login.refresh.min.period.seconds short 60 per-broker
        sasl.login.refresh.window.factor double 0.8 per-broker
        sasl.login.refresh.window.jitter double 0.05 per-broker
        sasl.login.retry.backoff.max.ms long 10000
        sasl.login.retry.backoff.ms long 100
        sasl.mechanism.controller.protocol string GSSAPI
        sasl.oauthbearer.assertion.algorithm string RS256
        sasl.oauthbearer.assertion.claim.aud string -
        sasl.oauthbearer.assertion.claim.exp.seconds int 300 0..86400
        sasl.oauthbearer.assertion.claim.iss string -
        sasl.oauthbearer.assertion.claim.jti.include boolean false
        sasl.oauthbearer.assertion.claim.nbf.seconds int 60 0..3600
        sasl.oauthbearer.assertion.claim.sub string -
        sasl.oauthbearer.assertion.file string -
        sasl.oauthbearer.assertion.private.key.file string -
        sasl.oauthbearer.assertion.private.key.passphrase password -
        sasl.oauthbearer.assertion.template.file string -
        sasl.oauthbearer.client.credentials.client.id string -
        sasl.oauthbearer.client.credentials.client.secret password -
        sasl.oauthbearer.jwt.retriever.class class org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever
        sasl.oauthbearer.jwt.validator.class class org.apache.kafka.common.security.oauthbearer.DefaultJwtValidator
        sasl.oauthbearer.scope string -
        sasl.oauthbearer.token.endpoint.url string -
        security.providers string -
        ssl.allow.dn.changes boolean false
        ssl.allow.san.changes boolean false
        ssl.keymanager.algorithm string SunX509 per-broker
        ssl.protocol string TLSv1.3 per-broker
        ssl.provider string - per-broker
        ssl.secure.random.implementation string - per-broker
        ssl.trustmanager.algorithm string PKIX per-broker
        """,
    ),
    _group(
        "a client may use in a burst what one sample brings (quota.window.size.seconds), whatever its number",
        """
        quota.window.num int 11 1..
        """,
    ),
    _group(
        "metrics are served in the format of Prometheus at /metrics of the HTTP interface",
        """
        kafka.metrics.polling.interval.secs int 10 1..
        kafka.metrics.reporters list ''
        metric.reporters list org.apache.kafka.common.metrics.JmxReporter dynamic
        metrics.num.samples int 2 1..
        metrics.recording.level string INFO
        metrics.sample.window.ms long 30000 1..
        """,
    ),
    _group(
        _NO_STREAMS,
        """
        group.streams.assignment.interval.ms int 1000 0.. dynamic
        group.streams.heartbeat.interval.ms int 5000 1..
        group.streams.initial.rebalance.delay.ms int 3000 0..
        group.streams.max.assignment.interval.ms int 15000 0..
        group.streams.max.heartbeat.interval.ms int 15000 1..
        group.streams.max.session.timeout.ms int 60000 1..
        group.streams.max.size int 2147483647 1..
        group.streams.max.standby.replicas int 2 0..
        group.streams.min.assignment.interval.ms int 0 0..
        group.streams.min.heartbeat.interval.ms int 5000 1..
        group.streams.min.session.timeout.ms int 45000 1..
        group.streams.num.standby.replicas int 0 0..
        group.streams.session.timeout.ms int 45000 1..
        """,
    ),
    _group(
        "a waiting request is removed when it ends: there is no purgatory to purge",
        """
        delete.records.purgatory.purge.interval.requests int 1
        fetch.purgatory.purge.interval.requests int 1000
        producer.purgatory.purge.interval.requests int 1000
        share.fetch.purgatory.purge.interval.requests int 1000
        """,
    ),
    _group(
        "Firn sizes and times its buffers, checkpoints and snapshots by itself",
        """
        group.coordinator.append.linger.ms int -1 -1..
        group.coordinator.cached.buffer.max.bytes int 1048588 524288.. dynamic
        log.flush.offset.checkpoint.interval.ms int 60000 0..
        log.flush.start.offset.checkpoint.interval.ms int 60000 0..
        log.initial.task.delay.ms long 30000 0..
        offsets.load.buffer.size int 5242880 1..
        share.coordinator.append.linger.ms int -1 -1..
        share.coordinator.cached.buffer.max.bytes int 1048588 524288.. dynamic
        share.coordinator.cold.partition.snapshot.interval.ms int 300000 1..
        share.coordinator.load.buffer.size int 5242880 1..
        share.coordinator.state.topic.prune.interval.ms int 300000 1..
        transaction.state.log.load.buffer.size int 5242880 1..
        """,
    ),
    _group(
        "coordinators write their records uncompressed",
        """
        offsets.topic.compression.codec int 0
        share.coordinator.state.topic.compression.codec int 0
        """,
    ),
    _group(
        "the kernel and the event loop size this",
        """
        socket.listen.backlog.size int 50 1..
        socket.receive.buffer.bytes int 102400
        """,
    ),
    _group(
        "each transaction and each producer has its own deadline: nothing looks for them at intervals",
        """
        producer.id.expiration.check.interval.ms int 600000 1..
        transaction.abort.timed.out.transaction.cleanup.interval.ms int 10000 1..
        """,
    ),
    _group(
        "the classic, the consumer and the share protocol are always served",
        """
        group.coordinator.rebalance.protocols list classic,consumer,streams
        """,
    ),
    (
        _read(
            "process.roles list -",
            "there is one kind of process, the broker, and the cluster's metadata is a log in the object store",
            ("broker", "broker,controller"),
            "a cluster of Firn needs no controllers: do not start this process, or write process.roles=broker",
        ),
        _refused(
            "principal.builder.class class org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder per-broker",
            "org.apache.kafka.common.security.authenticator.DefaultKafkaPrincipalBuilder",
            _NO_JAVA,
        ),
        _refused("ssl.engine.factory.class class - per-broker", "", _NO_JAVA),
        _refused("create.topic.policy.class.name class -", "", _NO_JAVA),
        _refused("alter.config.policy.class.name class -", "", _NO_JAVA),
        _refused("client.quota.callback.class class -", "", _NO_JAVA),
        _refused(
            "config.providers list '' dynamic",
            "",
            "values are not fetched from elsewhere: write them into the file, or give them as environment variables",
        ),
        _refused("group.share.assignors list simple", "simple", "share groups have one assignor, simple"),
        _refused(
            "transaction.two.phase.commit.enable boolean false",
            "false",
            "every transaction ends by its timeout: there is no two-phase commit",
        ),
    ),
)
"""Broker settings of Apache Kafka 4.3.1 that have no effect in Firn, by name."""

_GONE: Final = "Kafka 4.0 removed it"

BROKER_OF_OLDER_KAFKA: Final = _named(
    _group(
        _GONE,
        """
        auto.include.jmx.reporter boolean true
        broker.id.generation.enable boolean true
        control.plane.listener.name string -
        delegation.token.master.key password -
        group.coordinator.new.enable boolean true
        inter.broker.protocol.version string -
        log.message.downconversion.enable boolean true
        log.message.format.version string -
        log.message.timestamp.difference.max.ms long 9223372036854775807
        offsets.commit.required.acks short -1
        reserved.broker.max.id int 1000
        """,
    )
)
"""Settings in configuration files of Kafka 3."""

_PREFIXES: Final = {
    "password.encoder.": _GONE,
    "rlmm.config.": "segment manifests are part of Firn",
    "rsm.config.": "the tier is part of Firn: firn.store.url names it",
    "zookeeper.": _GONE,
}
"""Prefixes of names. Firn neither reads nor keeps their values, because some may be secrets."""

TOPIC_WITHOUT_EFFECT: Final = _named(
    _group("it is for tests of Kafka itself; use segment.bytes", "internal.segment.bytes int - 0.."),
    _group(
        _GONE,
        """
        message.downconversion.enable boolean true
        message.format.version string -
        message.timestamp.difference.max.ms long 9223372036854775807 0..
        """,
    ),
)
"""Topic settings that have no effect in Firn: of Kafka 4, and of Kafka 3 because many files still contain them."""

GROUP_WITHOUT_EFFECT: Final = _named(
    _group(
        _NO_STREAMS,
        """
        streams.assignment.interval.ms int 1000 0..
        streams.heartbeat.interval.ms int 5000 1..
        streams.initial.rebalance.delay.ms int 3000 0..
        streams.num.standby.replicas int 0 0..
        streams.session.timeout.ms int 45000 1..
        """,
    )
)
"""Settings of single groups that have no effect in Firn."""

OF_REPLICAS: Final = (
    "default.replication.factor",
    "offsets.topic.replication.factor",
    "transaction.state.log.replication.factor",
    "share.coordinator.state.topic.replication.factor",
)
IN_SYNC: Final = "min.insync.replicas"
"""Settings that one broker lowers to 1."""

NOT_KEPT: Final = "(not kept)"
"""Placeholder for a secret that Firn does not need: the secret reaches no log, no bucket and no response."""


def broker_setting_without_effect(name: str) -> WithoutEffect | None:
    """The entry of a name that Firn does not define; None if Kafka does not know the name either."""
    found = BROKER_WITHOUT_EFFECT.get(name) or BROKER_OF_OLDER_KAFKA.get(name)
    if found is not None:
        return found
    for prefix, reason in _PREFIXES.items():
        if name.startswith(prefix) and name != prefix:
            return _read(f"{name} password -", reason)
    return None


def checked_text(entry: WithoutEffect, text: str) -> str:
    """The text of a given value that Firn keeps.

    Raises: RequestRejected INVALID_CONFIG for a value that is refused, of the wrong type or out of bounds.
    """
    definition = entry.definition
    value = parse_value(definition, text)
    if entry.harmless is not None and value not in entry.harmless:
        raise RequestRejected(
            ErrorCode.INVALID_CONFIG,
            f"Invalid value {text} for configuration {definition.name}: {clause(entry.refusal)}.",
        )
    return NOT_KEPT if definition.sensitive and text else text


def told(names: Iterable[str], entries: Mapping[str, WithoutEffect] | None = None) -> str:
    """One clause for a log line: the names, grouped by reason.

    Args:
        names: settings; those that take effect are left out.
        entries: where those without effect are described; None for a broker's.
    """
    idle = BROKER_IDLE if entries is None else TOPIC_IDLE
    by_reason: dict[str, list[str]] = {}
    for name in names:
        entry = broker_setting_without_effect(name) if entries is None else entries.get(name)
        reason = idle.get(name) if entry is None else entry.reason
        if reason is not None:
            by_reason.setdefault(reason, []).append(name)
    return "; ".join(f"{', '.join(sorted(group))} ({reason})" for reason, group in by_reason.items())


_DEFAULTS: Final[Mapping[str, object]] = {name: getattr(BrokerConfig(), name.replace(".", "_")) for name in OF_REPLICAS}


def set_aside(config: BrokerConfig) -> str | None:
    """One log line about given settings without effect, or with less than they ask for; None if there are none. Defaults that are
    lowered are not told."""
    parts = []
    if config.without_effect:
        parts.append(f"settings of Kafka that mean nothing here: {told(name for name, _ in config.without_effect)}")
    lowered = [
        f"{name}={value}"
        for name, value in (
            *((name, getattr(config, name.replace(".", "_"))) for name in OF_REPLICAS),
            (IN_SYNC, config.topic_defaults.min_insync_replicas),
        )
        if value > 1 and value != _DEFAULTS.get(name)
    ]
    if lowered:
        parts.append(f"settings that are lowered to the number of brokers: {', '.join(lowered)}")
    return "; ".join(parts) or None
