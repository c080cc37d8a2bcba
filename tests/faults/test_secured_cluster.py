"""Broker processes of a secured cluster under clients: TLS and logins everywhere, rules, a proven cluster log, Redis with a password.

The faults are those of ``test_cluster.py``.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.faults.test_cluster import SETTINGS, SHORT
from tests.support.cluster import Writing, brokers_running, create_topics
from tests.support.cluster_faults import Faults
from tests.support.secured_cluster import Security, allow

pytestmark = pytest.mark.faults


def test_all_that_was_acknowledged_is_kept_where_nobody_is_let_in_without_a_login(tmp_path: Path) -> None:
    security = Security(tmp_path / "tls")
    with brokers_running(tmp_path, proxied=True, settings=SETTINGS | SHORT, security=security) as brokers:
        admin = brokers.admin
        create_topics(admin, "t")
        allow(admin, "t")
        writing = Writing(brokers.bootstrap, client=brokers.client)
        faults = Faults(brokers, random.Random(1), [writing])
        try:
            faults.run([faults.kill_the_controller], 1)
        finally:
            writing.finish()
        writing.check(brokers.bootstrap)
