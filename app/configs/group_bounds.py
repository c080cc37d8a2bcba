"""Bounds of group settings: of a broker's own values, and of single groups.

``group.consumer.min.session.timeout.ms`` and ``…max…`` bound ``group.consumer.session.timeout.ms`` and the group's own
``consumer.session.timeout.ms``. The same holds for every setting of ``GROUP_BOUNDS``. A value beyond its bounds is refused when
it is set. If a bound changes later, the effective values of groups are limited to it, but their overrides stay.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from app.configs.broker import BrokerConfig
from app.core.errors import ErrorCode, RequestRejected

HEARTBEAT: Final = "heartbeat.interval.ms"
SESSION: Final = "session.timeout.ms"


class GroupBound(NamedTuple):
    """One setting of groups of one kind, with its bounds."""

    kind: str
    """``consumer`` or ``share``."""
    name: str
    """Without ``group.<kind>.``."""

    @property
    def setting(self) -> str:
        return f"group.{self.kind}.{self.name}"

    @property
    def of_group(self) -> str:
        """The name in a single group."""
        return f"{self.kind}.{self.name}"

    @property
    def least(self) -> str:
        return f"group.{self.kind}.min.{self.name}"

    @property
    def most(self) -> str:
        return f"group.{self.kind}.max.{self.name}"


GROUP_BOUNDS: Final = (
    *(
        GroupBound(kind, name)
        for kind in ("consumer", "share")
        for name in (SESSION, HEARTBEAT, "assignment.interval.ms")
    ),
    *(
        GroupBound("share", name)
        for name in ("record.lock.duration.ms", "delivery.count.limit", "partition.max.record.locks")
    ),
)
BOUND_OF_GROUP: Final = {bound.of_group: bound for bound in GROUP_BOUNDS}
"""Bounds by the name in a single group."""


def value_of(broker: BrokerConfig, setting: str) -> int:
    """An integer setting of a broker, by its name."""
    value = getattr(broker, setting.replace(".", "_"))
    assert isinstance(value, int)
    return value


def check_group_bounds(broker: BrokerConfig) -> None:
    """Raises: RequestRejected INVALID_CONFIG if a broker's settings contradict each other."""
    for bound in GROUP_BOUNDS:
        if value_of(broker, bound.most) < value_of(broker, bound.least):
            raise _refused(f"{bound.most} must be greater than or equal to {bound.least}")
        check_within(broker, bound, bound.setting, value_of(broker, bound.setting))
    if broker.group_max_session_timeout_ms < broker.group_min_session_timeout_ms:
        # Kafka starts with such settings, and then refuses every member.
        raise _refused("group.max.session.timeout.ms must be greater than or equal to group.min.session.timeout.ms")
    for kind in ("consumer", "share"):
        if value_of(broker, f"group.{kind}.{HEARTBEAT}") >= value_of(broker, f"group.{kind}.{SESSION}"):
            raise _refused(f"group.{kind}.{HEARTBEAT} must be less than group.{kind}.{SESSION}")


def check_within(broker: BrokerConfig, bound: GroupBound, name: str, value: int) -> None:
    """Raises: RequestRejected INVALID_CONFIG for a value that the broker's bounds do not allow."""
    least, most = value_of(broker, bound.least), value_of(broker, bound.most)
    if value < least:
        raise _refused(f"{name} must be greater than or equal to {bound.least} ({least}), and it is {value}")
    if value > most:
        raise _refused(f"{name} must be less than or equal to {bound.most} ({most}), and it is {value}")


def clamped(broker: BrokerConfig, bound: GroupBound, value: int) -> int:
    """A group's effective value."""
    return max(value_of(broker, bound.least), min(value, value_of(broker, bound.most)))


def _refused(why: str) -> RequestRejected:
    return RequestRejected(ErrorCode.INVALID_CONFIG, f"{why}.")
