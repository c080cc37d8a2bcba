"""Pages of users and of quotas over a broker with logins."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from app.client.admin import AdminClient
from app.client.cluster import ClusterClient
from app.http.console.pages.users import quota_row
from app.metadata.image.records import SECURITY_LEVEL
from app.security.acls import Operation, ResourceType
from app.security.scram import ScramMechanism
from tests.http.secured import secured
from tests.support.broker import running_broker
from tests.support.console import served_by


@pytest.mark.parametrize(
    ("entity", "limits", "words"),
    [
        ({"user": "alice"}, {"producer_byte_rate": 2_097_152}, ["user alice", "may write 2.0 MiB/s"]),
        ({"user": None}, {"consumer_byte_rate": 1024}, ["users without limits of their own ", "may read 1.0 KiB/s"]),
        (
            {"user": "alice", "client-id": "app"},
            {"request_percentage": 12.5, "firn.cold_read_byte_rate": 1},
            ["client id app", "user alice", "may read from the bucket 1 B/s", "may use 12 % of a broker's loop"],
        ),
        ({"ip": "10.0.0.1"}, {"connection_creation_rate": 2.5}, ["address 10.0.0.1", "may open 2.5 connections/s"]),
        ({"tenant": "x"}, {"later_rate": 3}, ["tenant x", "later_rate 3"]),
    ],
)
def test_a_quota_is_told_in_words(entity: dict[str, str | None], limits: dict[str, float], words: list[str]) -> None:
    row = quota_row(entity, limits)
    parts = [f"{part.kind} {part.name}" for part in row.parts]
    assert parts + [f"{verb} {amount}" for verb, amount, _ in row.limits] == words


async def test_users_and_quotas_are_listed_for_those_who_may_see_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with secured(tmp_path) as http:
        await http.add_user("carol", "dave", "a<b>")
        await http.add_user("dave", mechanism=ScramMechanism.SCRAM_SHA_256)
        await http.allow(
            "dave",
            (Operation.DESCRIBE, ResourceType.CLUSTER, "kafka-cluster"),
            (Operation.DESCRIBE_CONFIGS, ResourceType.CLUSTER, "kafka-cluster"),
        )
        users = await http.ask("dave", "/console/users")
        assert users.status_code == 200
        assert "3 users" in users.text
        assert "a&lt;b&gt;" in users.text
        assert "SCRAM-SHA-256" in users.text
        assert "/console/access?q=User%3Acarol" in users.text
        filtered = (await http.ask("dave", "/console/users?q=caro")).text
        assert "1 user of 3" in filtered
        assert "a&lt;b&gt;" not in filtered
        monkeypatch.setattr("app.http.console.pages.users.USERS_A_PAGE", 2)
        assert "carol" in (await http.ask("dave", "/console/users")).text
        assert "dave" in (await http.ask("dave", "/console/users?from=2")).text
        empty = (await http.ask("dave", "/console/quotas")).text
        assert "There are no quotas" in empty
        assert "firn --client-config client.properties quota set" in empty
        for path in ("/console/users", "/console/quotas"):
            assert (await http.ask("carol", path)).status_code == 403, path
        assert (await http.ask("dave", f"/console/users?q={'x' * 400}")).status_code == 400


async def test_quotas_of_the_cluster_are_shown(tmp_path: Path) -> None:
    async with running_broker(tmp_path, new_level=SECURITY_LEVEL) as broker, served_by(broker) as http:
        async with ClusterClient((("127.0.0.1", broker.port),), rng=random.Random(1)) as cluster:
            admin = AdminClient(cluster)
            await admin.alter_quotas({"user": "a<b>"}, {"producer_byte_rate": 1_048_576.0})
            await admin.alter_quotas({"user": None}, {"consumer_byte_rate": 1_048_576.0})
        text = (await http.get("/console/quotas")).text
        assert "user <code>a&lt;b&gt;</code>" in text
        assert "users without limits of their own" in text
        assert "may write <strong>1.0 MiB/s</strong>" in text
        assert "without limits" not in (await http.get("/console/quotas?q=a%3C")).text
