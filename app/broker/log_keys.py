"""The keys of the cluster log, from the file that the settings name (ADR 0036)."""

from __future__ import annotations

import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from app.configs import BrokerConfig
from app.errors import ConfigError
from app.metadata.log_proofs import Proofs

LOCATION = "firn.cluster.log.key.location"


def with_log_keys(config: BrokerConfig, log_line: Callable[[str], None]) -> BrokerConfig:
    """The settings with the keys of their file. Raises: ConfigError, also for keys that are none."""
    location = config.firn_cluster_log_key_location
    if location:
        if config.firn_cluster_log_key:
            raise ConfigError(f"{LOCATION} and firn.cluster.log.key say the same: take one of them out.")
        path = Path(location)
        try:
            text = path.read_text(encoding="ascii")
            others = stat.S_IMODE(path.stat().st_mode) & 0o077
        except OSError as error:
            raise ConfigError(f"{LOCATION} {location} cannot be read: {error.strerror}.") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{LOCATION} {location} is no file of keys in base64.") from None
        if others:
            log_line(
                f"{location} has the key of the cluster log, and others than its owner can read it: chmod 600 {location}"
            )
        if not text.strip():
            raise ConfigError(f"{LOCATION} {location} is empty.")
        config = replace(config, firn_cluster_log_key=text)
    Proofs.of_settings(config.firn_cluster_log_key, introducing=config.firn_cluster_log_key_introducing)
    return config
