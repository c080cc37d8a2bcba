"""``firn`` whose brokers reach each other through proxies, so that a test can cut the ways between them.

    python -m tests.support.cluster_served '{"PORT OF A BROKER": PORT OF THE PROXY, …}' serve --config …

Everything else is as in ``python -m app.cli``.
"""

from __future__ import annotations

import json
import sys

from app.broker.security import listener_doors as doors
from app.cli import main
from app.client import connection
from app.client.connection import Dialer
from app.configs import BrokerConfig
from tests.support.cluster_process import LoggingIn, ThroughLinks

if __name__ == "__main__":
    links = json.loads(sys.argv.pop(1))
    inter_broker_dial = doors.inter_broker_dial

    def dial_through_links(config: BrokerConfig) -> Dialer:
        secure = inter_broker_dial(config)
        return (LoggingIn if hasattr(secure, "login") else ThroughLinks)(links, secure)

    doors.inter_broker_dial = dial_through_links
    connection.dial_tcp = ThroughLinks(links, connection.dial_tcp)  # type: ignore[assignment]  # where nothing is secured
    sys.exit(main())
