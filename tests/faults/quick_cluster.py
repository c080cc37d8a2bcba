"""Settings of a cluster where leaders move back within seconds."""

from __future__ import annotations

SETTINGS = {"replica_lag_time_max_ms": 2_000, "leader_imbalance_check_interval_seconds": 2}
