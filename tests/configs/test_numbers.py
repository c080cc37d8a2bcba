"""The greatest values of Kafka's number types are those of Java."""

from __future__ import annotations

import struct
import sys

from app.configs.numbers import INT_MAX, KAFKA_DOUBLE_MAX, LONG_MAX, SHORT_MAX


def test_the_greatest_values_are_those_of_java() -> None:
    assert (
        struct.pack(">hiq", SHORT_MAX, INT_MAX, LONG_MAX) == b"\x7f\xff" + b"\x7f" + b"\xff" * 3 + b"\x7f" + b"\xff" * 7
    )
    assert sys.float_info.max == KAFKA_DOUBLE_MAX
