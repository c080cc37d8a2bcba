"""How much may pass for throttled replicas that are out of sync (KIP-73; ADR 0024, V7). Pure; time is an argument.

A rate is measured over a window of samples, as Kafka's is. Bytes are counted after they have passed, so the rate may overshoot by
one response, and nothing passes until the window has let it go.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from app.configs import BrokerConfig
from app.configs.numbers import LONG_MAX

UNLIMITED = LONG_MAX
ALL = "*"


class RateWindow:
    """Bytes a second over the last samples."""

    __slots__ = ("_sample_ms", "_samples", "_samples_max", "_sum")

    def __init__(self, samples_max: int, sample_ms: int) -> None:
        self._samples_max = samples_max
        self._sample_ms = sample_ms
        self._samples: deque[tuple[int, int]] = deque()
        """Begin of the sample and bytes in it, oldest first."""
        self._sum = 0

    def record(self, size_bytes: int, now_ms: int) -> None:
        self._expire(now_ms)
        samples = self._samples
        if samples and now_ms - samples[-1][0] < self._sample_ms:
            began_ms, before = samples.pop()
            samples.append((began_ms, before + size_bytes))
        else:
            samples.append((now_ms, size_bytes))
        self._sum += size_bytes

    def rate(self, now_ms: int) -> float:
        """Bytes a second since the oldest sample began, and over one sample at least."""
        self._expire(now_ms)
        if not self._samples:
            return 0.0
        return self._sum * 1000 / max(now_ms - self._samples[0][0], self._sample_ms)

    def _expire(self, now_ms: int) -> None:
        samples = self._samples
        while samples and now_ms - samples[0][0] >= self._samples_max * self._sample_ms:
            self._sum -= samples.popleft()[1]


class Throttle:
    """One direction of a broker: its bytes as leader, or as follower."""

    __slots__ = ("_broker_id", "_window", "limit")

    def __init__(self, broker_id: int, *, samples_max: int = 11, sample_ms: int = 1000) -> None:
        self._broker_id = broker_id
        self._window = RateWindow(samples_max, sample_ms)
        self.limit: int = UNLIMITED
        """Bytes a second."""

    def covers(self, replicas: Collection[str], index: int) -> bool:
        """Whether a topic whose setting names ``replicas`` has this broker's replica of partition ``index`` throttled."""
        return bool(replicas) and (ALL in replicas or f"{index}:{self._broker_id}" in replicas)

    def is_exceeded(self, now_ms: int) -> bool:
        """Whether more has passed than the limit allows."""
        return self.limit != UNLIMITED and self._window.rate(now_ms) > self.limit

    def record(self, size_bytes: int, now_ms: int) -> None:
        """Count bytes that a throttled replica out of sync was sent, or has fetched."""
        self._window.record(size_bytes, now_ms)


def new_throttle(config: BrokerConfig) -> Throttle:
    """A throttle of replication that measures as the settings say; it is without a limit until one is set."""
    return Throttle(
        config.node_id,
        samples_max=config.replication_quota_window_num,
        sample_ms=config.replication_quota_window_size_seconds * 1000,
    )
