"""The greatest values of Kafka's number types, which several of its settings use for "no limit"."""

from __future__ import annotations

from typing import Final

SHORT_MAX: Final = (1 << 15) - 1
INT_MAX: Final = (1 << 31) - 1
LONG_MAX: Final = (1 << 63) - 1
KAFKA_DOUBLE_MAX: Final = 1.7976931348623157e308
