"""The audit log of one broker (ADR 0033), from before its start to its end: where its lines go, and the task that writes them.

Tests: ``tests/broker/test_audit.py``.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from app.configs.broker import OFF
from app.handlers.policy.auditing import Audit
from app.security.acls import CLUSTER_NAME, Operation, ResourceType

if TYPE_CHECKING:
    from app.broker.security.audit_log import AuditWriter, FilePlace, Place
    from app.broker.security.audit_topic import TopicPlace
    from app.configs import BrokerConfig
    from app.core.faults import Faults
    from app.core.metrics import Registry
    from app.core.seams import BlockingPool, Clock
    from app.handlers.policy.callers import Caller
    from app.metadata.controller.controller import Controller
    from app.metadata.view.view import ClusterView
    from app.replication.partition import PartitionTable
    from app.security.authorizer import Authorizer


class BrokerAudit:
    """``attach`` it, ``run`` it until it is cancelled, and ``close`` it, also if it was not attached. Belongs to one loop."""

    def __init__(
        self, config: BrokerConfig, *, clock: Clock, pool: BlockingPool, registry: Registry, faults: Faults
    ) -> None:
        """Open the file, if the settings name one. Raises: ConfigError."""
        self._config = config
        self._clock = clock
        self._pool = pool
        self._registry = registry
        self._faults = faults
        self.file: FilePlace | None = None
        self.topic: TopicPlace | None = None
        self.writer: AuditWriter | None = None
        """None if nothing is written."""
        self._audit: Audit | None = None
        if config.firn_audit_log_path != OFF:
            from app.broker.security.audit_log import FilePlace, open_file

            self.file = FilePlace(open_file(config), pool)

    def attach(
        self,
        *,
        cluster: ClusterView,
        controller: Controller,
        partitions: PartitionTable,
        link: object,
        authorizer: Authorizer | None,
    ) -> Audit:
        """Return the object that hears of refusals, changes and logins. ``link``: reaches other brokers; None on a broker that is
        alone."""
        config = self._config
        places: list[tuple[str, Place]] = []
        if self.file is not None:
            places.append(("file", self.file))
        if config.firn_audit_topic_enable:
            from app.broker.security.audit_topic import ProduceLink, TopicPlace

            self.topic = TopicPlace(
                config.node_id,
                cluster=cluster,
                controller=controller,
                partitions=partitions,
                link=link if isinstance(link, ProduceLink) else None,
                clock=self._clock,
                pool=self._pool,
                now_s=asyncio.get_running_loop().time,
            )
            places.append(("topic", self.topic))
        if places:
            from app.broker.security.audit_log import AuditWriter

            self.writer = AuditWriter(
                places, broker_id=config.node_id, clock=self._clock, faults=self._faults, registry=self._registry
            )

        def is_broker(caller: Caller) -> bool:
            return caller.listener == config.inter_broker_listener and (
                authorizer is None
                or authorizer.allows(
                    caller.principal, caller.host, Operation.CLUSTER_ACTION, ResourceType.CLUSTER, CLUSTER_NAME
                )
            )

        self._audit = Audit(
            self._registry,
            self._clock,
            config.node_id,
            self.writer,
            config.firn_audit_allowed_one_in,
            is_broker=is_broker,
        )
        return self._audit

    async def run(self) -> None:
        """Write until cancelled; return at once if nothing is written."""
        if self.writer is not None and self._audit is not None:
            await self.writer.run(self._audit)

    async def close(self) -> None:
        """Write the remaining lines, as far as that is quickly done. ``run`` has ended."""
        if self.topic is not None:
            self.topic.patient = False
        if self.writer is not None and self._audit is not None:
            await self.writer.finish(self._audit)
        if self.file is not None:
            self.file.close()
