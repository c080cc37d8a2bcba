"""Parts whose modules are imported after the start, or only if the settings want them: an import delays the start.

Tests: ``tests/broker/test_spending.py``, ``tests/broker/test_spot_notice.py``, ``tests/broker/test_delegation_tokens.py``.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from app.broker.composing.cluster_parts import ClusterParts
from app.broker.composing.local_parts import LocalParts
from app.broker.composing.node_seams import NodeSeams
from app.broker.composing.stages import Run
from app.configs import BrokerConfig
from app.core.faults import Faults
from app.core.metrics import Registry, Sample
from app.handlers.base.context import Context

if TYPE_CHECKING:
    from app.broker.quota_tokens import QuotaTokens
    from app.broker.security.listener_doors import Doors
    from app.broker.spending import Spending
    from app.cost.prices import StoreKind


class LateSpending:
    """The counting of costs. The start does not need it: its modules add a tenth to the time of all others."""

    def __init__(
        self,
        config: BrokerConfig,
        around: NodeSeams,
        registry: Registry,
        faults: Faults,
        *,
        local: LocalParts,
        cluster: ClusterParts,
        context: Context,
    ) -> None:
        self._config = config
        self._around = around
        self._registry = registry
        self._faults = faults
        self._local = local
        self._cluster = cluster
        self._context = context
        self.spending: Spending | None = None
        """The requests to the store in the last hour. It is there soon after the broker serves; None where they are not counted."""

    def runs(self) -> list[Run]:
        """Nothing to run where the requests to the store are not counted."""
        samples = self._around.store_samples
        return [] if samples is None else [partial(self._run, samples)]

    async def _run(self, store_samples: Callable[[], Awaitable[Sequence[Sample]]]) -> None:
        def load() -> type[Spending]:
            from app.broker.spending import Spending

            return Spending

        around, local, journal = self._around, self._local, self._cluster.journal
        spending = self.spending = (await around.pool.run(load))(
            self._registry,
            logs=local.logs,
            table=self._cluster.partitions.table,
            tier=local.remote_log_manager,
            traffic=self._context.metrics,
            store_samples=store_samples,
            wal_kept_bytes=lambda: 0.0 if journal.write_ahead is None else journal.write_ahead.kept_bytes,
            wal_store=_kind_of_wal_store(self._config),
            pool=around.pool,
            faults=self._faults,
        )
        await spending.run()


def _kind_of_wal_store(config: BrokerConfig) -> StoreKind | None:
    """The kind of store that write-ahead logs have of their own; None if they have none."""
    from app.cost.prices import StoreKind
    from app.objectstore.location import DirectoryLocation, parse_store_url

    if not config.wal_store_url:
        return None
    location = parse_store_url(config.wal_store_url)
    if isinstance(location, DirectoryLocation):
        return StoreKind.FILE
    return StoreKind.EXPRESS if location.is_directory_bucket else StoreKind.S3


def new_quota_tokens(
    config: BrokerConfig, around: NodeSeams, registry: Registry, faults: Faults, cluster: ClusterParts
) -> QuotaTokens | None:
    """The part that leases the tokens of limits of the whole cluster; None if all limits are this broker's."""
    if around.new_tokens is None or config.firn_quota_scope != "cluster":
        return None
    from app.broker.quota_tokens import QuotaTokens

    return QuotaTokens(
        around.new_tokens(lambda: str(cluster.view.image.cluster_id)),
        brokers=lambda: sum(not one.fenced for one in cluster.view.image.brokers.values()),
        now_s=around.elapsed_s,
        rng=around.rng,
        faults=faults,
        registry=registry,
    )


def security_runs(
    config: BrokerConfig,
    around: NodeSeams,
    faults: Faults,
    *,
    cluster: ClusterParts,
    tokens: QuotaTokens | None,
    doors: Doors | None,
) -> list[Run]:
    """The parts to run that the settings of logins and limits want: the deletion of old delegation tokens, the leases of tokens of
    limits, the watch over certificates."""

    async def sweep() -> None:
        from app.broker.security.token_sweep import sweep_tokens

        await sweep_tokens(
            cluster.view,
            cluster.membership.controller,
            interval_ms=config.delegation_token_expiry_check_interval_ms,
            clock=around.clock,
            faults=faults,
            log_line=around.log_line,
        )

    return [
        *([sweep] if config.delegation_token_secret_key else []),
        *([tokens.run] if tokens is not None else []),
        *([partial(doors.run, around.pool, faults, around.log_line)] if doors is not None else []),
    ]


def spot_notice_runs(config: BrokerConfig, around: NodeSeams, faults: Faults, context: Context) -> list[Run]:
    """Ask for the notice that this machine is taken away, where the settings name its address."""

    async def ask() -> None:
        from app.broker.watching.spot_notice import SpotNotice

        notice = SpotNotice(
            config.firn_spot_notice_endpoint,
            on_notice=context.drain.begin,
            log_line=around.log_line,
            faults=faults,
        )
        await notice.run()

    return [ask] if config.firn_spot_notice_endpoint else []
