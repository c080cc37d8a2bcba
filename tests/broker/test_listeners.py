"""Several listeners: each is served, and tells its clients the addresses of its own kind."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from app.client.connection import open_connection
from app.configs.listeners import ListenerConfig
from app.wire.apikeys import ApiKey
from app.wire.apis.describe_cluster import DescribeClusterRequest
from app.wire.apis.find_coordinator import FindCoordinatorRequest
from app.wire.apis.metadata import MetadataRequest
from tests.support.broker import running_broker

INSIDE = ListenerConfig(name="INSIDE", port=0, advertised_host="inside.example", advertised_port=7000)
OUTSIDE = ListenerConfig(name="OUTSIDE", port=0, advertised_host="outside.example")


async def test_clients_get_the_addresses_of_the_listener_that_they_came_by(tmp_path: Path) -> None:
    async with running_broker(tmp_path, listeners=(OUTSIDE, INSIDE), inter_broker_listener="INSIDE") as broker:
        ports = broker.node.ports
        assert [one.listener for one in broker.node.cluster.image.brokers[1].endpoints] == ["INSIDE", "OUTSIDE"]
        for name, address in {
            "INSIDE": ("inside.example", 7000),
            "OUTSIDE": ("outside.example", ports["OUTSIDE"]),
        }.items():
            connection = await open_connection("127.0.0.1", ports[name])
            described = await connection.request(ApiKey.DESCRIBE_CLUSTER, DescribeClusterRequest())
            assert [(one.host, one.port) for one in described.brokers] == [address]
            metadata = await connection.request(ApiKey.METADATA, MetadataRequest(topics=[]))
            assert [(one.host, one.port) for one in metadata.brokers] == [address]
            found = await connection.request(
                ApiKey.FIND_COORDINATOR, FindCoordinatorRequest(key_type=0, coordinator_keys=["a"])
            )
            assert [(one.host, one.port) for one in found.coordinators] == [address]
            await connection.close()


async def test_a_client_of_ipv4_is_itself_on_a_listener_of_both_kinds(tmp_path: Path) -> None:
    """Otherwise an ACL for its address does not count for it."""
    async with running_broker(tmp_path, listeners=(ListenerConfig(name="BOTH", host="::", port=0),)) as broker:
        assert broker.node.context.config.served[0].host == "::"
        connection = await open_connection("127.0.0.1", broker.node.ports["BOTH"])
        (session,) = [one.core for one in broker.node.server._connections]
        assert session.caller.host == "127.0.0.1"
        assert session.peer.startswith("127.0.0.1:")
        await connection.close()


def test_a_broker_with_a_plain_listener_imports_nothing_of_tls_logins_and_audits() -> None:
    modules = (
        "cryptography",
        "jwt",
        "app.machine.certificates",
        "app.handlers.serving.doors",
        "app.broker.security.listener_doors",
        "app.security.login",
    )
    of_audits = (
        "app.security.audit",
        "app.handlers.policy.auditing",
        "app.handlers.policy.audited_changes",
        "app.broker.security.broker_audit",
        "app.broker.security.audit_log",
        "app.broker.security.audit_topic",
        "app.machine.rotated_file",
    )
    program = (
        "import sys; import app.settings, app.cli.serve, app.broker.start.process, app.broker.node, app.broker.peers.control_link; "
        f"print(*sorted(set({(*modules, *of_audits)!r}) & set(sys.modules)))\n"
        # A broker imports the handlers that it was not asked for yet a while after its start.
        "from app.handlers.serving.dispatch import FAMILIES, Apis\n"
        "apis = Apis()\n"
        "for family in FAMILIES: apis.load(family)\n"
        f"print(*sorted(set({of_audits!r}) & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "\n\n", "")
