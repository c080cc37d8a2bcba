"""Settings of an instance are read from text, numbers and booleans."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from app.client.cluster import EARLIEST, LATEST
from app.http.consumers.settings import WAIT_MS_MAX, Format, InstanceBody, InstanceSettings, read_settings
from app.http.errors import RestError


def read(**settings: Any) -> InstanceSettings:
    return read_settings(msgspec.convert(settings, InstanceBody))


def test_without_settings_an_instance_is_as_the_documentation_says() -> None:
    assert read() == InstanceSettings(Format.BINARY, LATEST, True, 0, 1_000, False)


@pytest.mark.parametrize(
    ("settings", "field", "value"),
    [
        ({"format": "avro"}, "format", Format.AVRO),
        ({"auto.offset.reset": "earliest"}, "reset_to", EARLIEST),
        ({"auto.offset.reset": "none"}, "reset_to", None),
        ({"auto.commit.enable": "false"}, "auto_commit", False),
        ({"auto.commit.enable": False}, "auto_commit", False),
        ({"enable.auto.commit": "FALSE"}, "auto_commit", False),
        ({"fetch.min.bytes": "512"}, "min_bytes", 512),
        ({"fetch.min.bytes": -1}, "min_bytes", 0),
        ({"consumer.request.timeout.ms": "2000"}, "wait_ms_max", 2_000),
        ({"consumer.request.timeout.ms": 10_000_000}, "wait_ms_max", WAIT_MS_MAX),
        ({"isolation.level": "read_committed"}, "read_committed", True),
    ],
)
def test_each_setting_is_read(settings: dict[str, Any], field: str, value: Any) -> None:
    assert getattr(read(**settings), field) == value


@pytest.mark.parametrize("text", ["1e3", "0x10", "٣", "9" * 30, "-", "--1", " 1"])
def test_a_number_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(RestError, match=r"fetch\.min\.bytes") as refused:
        read(**{"fetch.min.bytes": text})
    assert refused.value.answer.error_code == 42204
