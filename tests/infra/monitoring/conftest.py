"""Patience for brokers on a slow machine."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """The metrics of a broker that a slow machine holds up are waited for."""
    for name in ("METRICS_TIMEOUT_S", "RESPONSE_TIMEOUT_S"):
        monkeypatch.setattr(f"app.http.gateway.{name}", 60.0)
