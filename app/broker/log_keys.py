"""The keys of the cluster log, from the file that the settings name (ADR 0036)."""

from __future__ import annotations

import os
import stat
from dataclasses import replace

from app.configs import BrokerConfig
from app.errors import ConfigError
from app.metadata.log_proofs import Proofs

LOCATION = "firn.cluster.log.key.location"


def with_log_keys(config: BrokerConfig) -> BrokerConfig:
    """The settings with the keys of their file. Raises: ConfigError, also for keys that are none, or that others can read."""
    location = config.firn_cluster_log_key_location
    if location:
        if config.firn_cluster_log_key:
            raise ConfigError(
                f"{LOCATION} and firn.cluster.log.key both have the keys of the cluster log: take one of them out."
            )
        try:
            with open(location, encoding="ascii") as file:
                if stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o077:
                    raise ConfigError(
                        f"{LOCATION} {location} has the key of the cluster log, and others than its owner can read or change it: "
                        f"run `chmod 600 {location}`."
                    )
                text = file.read()
        except OSError as error:
            raise ConfigError(f"{LOCATION} {location} cannot be read: {error.strerror}.") from None
        except UnicodeDecodeError:
            raise ConfigError(f"{LOCATION} {location} is no file of keys in base64.") from None
        if not text.strip():
            raise ConfigError(f"{LOCATION} {location} is empty.")
        config = replace(config, firn_cluster_log_key=text)
    Proofs.of_settings(config.firn_cluster_log_key, introducing=config.firn_cluster_log_key_introducing)
    return config
