"""A broker's view of the cluster: the newest image of the cluster log, the listeners to its changes, and whether the broker is
fenced.

Every broker has a view. Only the controller (``controller.py``) writes the cluster log.

A broker is *fenced* when another broker has its place: when the cluster log has a registration of its node id that is not its
own, or, for the controller, the seal of another writer. Then ``look`` raises, listeners are called, and nothing makes the broker
a member again.

Tests: ``tests/metadata/test_controller.py``.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from uuid import UUID

from app.configs import BrokerConfig, TopicConfig
from app.configs.resolving import resolve_topic_config
from app.core.errors import FencedError, clause, copy_of
from app.core.seams import Clock
from app.metadata.image.draft import ClusterState
from app.metadata.image.image import ClusterImage, ImageDelta, TopicImage
from app.metadata.log import layout
from app.metadata.log.log_proofs import Proofs, Untrusted
from app.metadata.log.numbered_log import LogTimings, NumberedLog
from app.metadata.peers.liveness import Identity
from app.objectstore.api import ObjectStore

Listener = Callable[[ClusterImage, ImageDelta], None]


class ClusterView:
    """Belongs to one event loop. Load ``log`` first, then call ``publish`` for its image."""

    def __init__(
        self,
        store: ObjectStore,
        *,
        config: BrokerConfig,
        identity: Identity,
        rng: random.Random,
        clock: Clock,
        timings: LogTimings,
    ) -> None:
        self.config = config
        """The broker's settings, as it was started."""
        self.identity = identity
        self.log: NumberedLog[ClusterState] = NumberedLog(
            store,
            layout.CLUSTER_PREFIX,
            writer_id=self.writer_id,
            rng=rng,
            clock=clock,
            new_state=ClusterState,
            timings=timings,
            proofs=Proofs.of_settings(config.firn_cluster_log_key, introducing=config.firn_cluster_log_key_introducing),
            urgent=True,
        )
        """The cluster log, as far as it was read."""
        self.log.on_untrusted = self._distrust
        self._published = ClusterImage()
        self._listeners: list[Listener] = []
        self._checks: list[Callable[[], str | None]] = [self._why_replaced]
        self._on_fenced: list[Callable[[FencedError], None]] = []
        self._fenced: FencedError | None = None
        self._effective: BrokerConfig | None = None
        """This broker's settings with the dynamic overrides of ``_effective_of``: a thousand topics ask for them at once."""
        self._effective_of: Mapping[int, Mapping[str, str]] = {}
        self._topic_configs: dict[UUID, tuple[BrokerConfig, Mapping[str, str], TopicConfig]] = {}
        """Settings of topics, with the inputs that they were resolved from: each partition of a thousand asks for them."""
        self.registered = True
        """Whether the log should have this start of this broker. False while one broker of several has not registered yet."""

    # --- the published image ------------------------------------------------------------------------------------------

    @property
    def image(self) -> ClusterImage:
        """The present image of the cluster. Immutable."""
        return self._published

    @property
    def writer_id(self) -> str:
        """The writer id with which this start of this broker seals logs and manifests."""
        return f"{self.identity.broker_id}/{self.identity.directory_id}/{self.identity.incarnation}"

    def effective_config(self, topic: TopicImage) -> TopicConfig:
        """The settings of a topic on this broker, from the topic's overrides, dynamic broker overrides and static settings."""
        broker = self.effective_broker_config()
        known = self._topic_configs.get(topic.topic_id)
        if known is not None and known[0] is broker and known[1] is topic.configs:
            return known[2]
        config = resolve_topic_config(broker, topic.configs)
        if len(self._topic_configs) > 2 * len(self._published.topics_by_id):
            self._topic_configs.clear()  # topics were deleted
        self._topic_configs[topic.topic_id] = (broker, topic.configs, config)
        return config

    def effective_broker_config(self) -> BrokerConfig:
        """This broker's settings with their dynamic overrides."""
        overrides = self._published.broker_configs
        if self._effective is None or self._effective_of is not overrides:
            self._effective = self._published.effective_broker_config(self.config)
            self._effective_of = overrides
        return self._effective

    # --- following ----------------------------------------------------------------------------------------------------

    def on_change(self, listener: Listener) -> None:
        """Call ``listener(image, delta)`` after every change of the image, in order. The listener must not wait."""
        self._listeners.append(listener)

    def publish(self) -> None:
        """Pass the newest image of the log to all listeners, if it is new."""
        image, before = self.log.state.image, self._published
        if image is before:
            return
        self._published = image
        if self._listeners:
            delta = ImageDelta.between(before, image)
            for listener in self._listeners:
                listener(image, delta)

    def check_place(self) -> None:
        """Check by the entries read so far that no other broker has this broker's place. Raises: FencedError."""
        self.check_not_fenced()
        for check in self._checks:
            why = check()
            if why is not None:
                raise self.fence(why)

    async def look(self) -> None:
        """Read new entries of the cluster log. When this returns, no other broker has this broker's place.

        Raises: FencedError, StorageUnavailable, CorruptionError.
        """
        self.check_not_fenced()
        await self.log.poll()
        self.publish()
        self.check_place()

    # --- being fenced -------------------------------------------------------------------------------------------------

    @property
    def fenced(self) -> bool:
        """Whether another broker has this broker's place."""
        return self._fenced is not None

    def check_not_fenced(self) -> None:
        """Raises: FencedError."""
        if self._fenced is not None:
            raise copy_of(self._fenced)

    def fence(self, reason: str) -> FencedError:
        """This broker is no longer a member, for ``reason``. Returns: the error to raise, the first one if there was one before."""
        if self._fenced is None:
            self._fenced = FencedError(reason)
            for listener in self._on_fenced:
                listener(self._fenced)
        return self._fenced

    def _distrust(self, error: Untrusted) -> None:
        """Stop: the cluster log is not only the brokers' (K10)."""
        self.fence(f"The cluster log cannot be trusted, so this broker stops: {clause(error)}.")

    def on_fenced(self, listener: Callable[[FencedError], None]) -> None:
        """Call ``listener`` once, when this broker is fenced."""
        self._on_fenced.append(listener)

    def check_on_look(self, check: Callable[[], str | None]) -> None:
        """Have every ``look`` call ``check``, which returns why this broker is fenced, or None."""
        self._checks.append(check)

    def _why_replaced(self) -> str | None:
        if not self.registered:
            return None
        mine = self.identity
        bound = self.log.state.image.brokers.get(mine.broker_id)
        if bound is not None and (bound.directory_id, bound.incarnation) == (mine.directory_id, mine.incarnation):
            return None
        directory = f"data directory {bound.directory_id}" if bound is not None else "nobody"
        return f"Node id {mine.broker_id} has been taken over by {directory}; this broker stops."
