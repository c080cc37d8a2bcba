"""The keys of the cluster log, from the file that the settings name (ADR 0036).

Tests: ``tests/cli/test_security_settings.py``.
"""

from __future__ import annotations

import os
import stat
from dataclasses import replace

from app.configs import BrokerConfig
from app.core.errors import ConfigError
from app.metadata.log.log_proofs import Proofs

LOCATION = "firn.cluster.log.key.location"


def is_open_to_others(mode: int, owner: int) -> bool:
    """Whether others than its owner have access to a file of secrets. The group may read one of root's: so an orchestrator gives
    it to a process that is not root."""
    return bool(mode & (0o027 if owner == 0 else 0o077))


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
                found = os.fstat(file.fileno())
                if is_open_to_others(stat.S_IMODE(found.st_mode), found.st_uid):
                    raise ConfigError(
                        f"{LOCATION} {location} has the key of the cluster log, and others than its owner can read or change it: "
                        f"run `chmod 600 {location}`, or give a mounted secret the mode 0400 or 0440."
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
