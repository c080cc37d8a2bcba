"""Policies that ``firn iam policy`` prints, against a server that obeys them: enough for each role's work, and no more."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from app.cli import main
from app.core.errors import StorageUnavailable
from app.core.units import Offset, TopicId
from app.iam.calls import DOCTOR_NEEDS, NEEDS, TARGET_NEEDS
from app.iam.policy import BROKER_PREFIXES, policy_of
from app.metadata.log import layout
from app.objectstore import s3 as s3_adapter
from app.objectstore.api import ObjectMissing
from app.objectstore.check import check_store
from app.objectstore.location import S3Location, parse_store_url
from app.objectstore.s3 import S3Store
from app.records.builder import build_batch
from tests.handlers.conversation import batch, talk
from tests.infra.iam.callers import BUCKET_POLICY, role_arn
from tests.objectstore.conftest import NoWait, shared_models
from tests.spark.s3 import NOW_MS, read
from tests.support.broker import RunningBroker, running_broker
from tests.support.buckets import BucketBuilder
from tests.support.changing import delete_topic
from tests.support.talking import produce, tier_everything
from tests.support.waiting import until
from tools.infra.bucket_policy import WRITTEN_ONCE, bucket_policy
from tools.infra.iam import actions_of, allowed

REPOSITORY = Path(__file__).resolve().parents[3]
BUCKET = "firn-bucket"
PREFIX = "prod"


class Server(NamedTuple):
    """A server that obeys the policies in a folder."""

    port: int
    folder: Path

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}/{PREFIX}?endpoint=http://127.0.0.1:{self.port}&region=us-east-1"

    @property
    def location(self) -> S3Location:
        location = parse_store_url(self.url)
        assert isinstance(location, S3Location)
        return location

    def obey(self, name: str, policy: dict[str, Any]) -> None:
        (self.folder / f"{name}.json").write_text(json.dumps(policy))
        (self.folder / f"{name}.calls").unlink(missing_ok=True)

    def obey_bucket_policy(self, document: dict[str, Any]) -> None:
        """Of the bucket, for callers with a policy, until the test ends."""
        (self.folder / BUCKET_POLICY).write_text(json.dumps(document))

    def calls(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.folder / f"{name}.calls").read_text().splitlines()]

    @contextlib.asynccontextmanager
    async def opened(self) -> AsyncIterator[S3Store]:
        """The store, for whom the environment's access key names now."""
        store = S3Store(self.location, rng=NoWait())
        await store.open()
        try:
            yield store
        finally:
            await store.close()


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("policies")
    command = [sys.executable, "-m", "tests.infra.iam.policed_server", str(folder)]
    with subprocess.Popen(command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        port = process.stdout.readline().strip()
        assert port, "the server did not start"
        yield Server(int(port), folder)
        process.stdin.close()
        process.wait()


@pytest.fixture
async def server(started: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Server]:
    """The server with an empty bucket; the caller is ``admin``, who may do everything, until a test says otherwise."""
    monkeypatch.setattr(s3_adapter, "ServiceModels", shared_models)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    for name in ("AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_REGION", "AWS_DEFAULT_REGION", "AWS_ENDPOINT_URL"):
        monkeypatch.delenv(name, raising=False)
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "admin")
    async with started.opened() as store:
        await store._client.create_bucket(Bucket=BUCKET)
        yield started
        (started.folder / BUCKET_POLICY).unlink(missing_ok=True)
        for found in await store.list_objects(""):
            await store.delete(found.key)
        await store._client.delete_bucket(Bucket=BUCKET)


async def tiered_topic(broker: RunningBroker, name: str) -> None:
    await broker.create_topic(name, 1, retention_ms="-1")
    async with talk(broker.port) as client:
        await produce(client, name, batch(40))
    await tier_everything(broker, name)


@pytest.mark.ci
async def test_a_broker_and_its_doctor_need_all_that_their_policy_allows_and_no_more(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = policy_of("broker", server.location)
    server.obey("broker", policy)
    server.obey_bucket_policy(bucket_policy(f"arn:aws:s3:::{BUCKET}", f"{PREFIX}/", [role_arn("broker")]))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "broker")
    async with server.opened() as store:
        results = await check_store(store)
        assert [result for result in results if not result.passed] == []
        async with running_broker(tmp_path, store=store) as broker:
            await tiered_topic(broker, "t")
            await tiered_topic(broker, "gone")
            await delete_topic(broker.node.membership.controller, "gone")
            await until(lambda: broker.node.cluster.image.topic("gone") is None)
    async with server.opened() as store, running_broker(tmp_path, store=store) as broker, talk(broker.port) as client:
        assert await produce(client, "t", batch(1)) == [40]
    calls = server.calls("broker")
    assert [call for call in calls if not call["allowed"]] == []
    assert {call["call"] for call in calls} == set(NEEDS)
    assert {NEEDS[call["call"]].action for call in calls} == actions_of(policy)
    touched = {key.removeprefix(f"{PREFIX}/").partition("/")[0] + "/" for call in calls for key in call["keys"]}
    assert touched == set(BROKER_PREFIXES) - {layout.WAL_PREFIX}  # no write-ahead log yet; its keys are defined


@pytest.mark.ci
async def test_a_write_that_is_not_conditional_or_not_a_brokers_is_refused_by_the_bucket(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("broker", "somebody"):
        server.obey(name, policy_of("broker", server.location))
    server.obey_bucket_policy(bucket_policy(f"arn:aws:s3:::{BUCKET}", f"{PREFIX}/", [role_arn("broker")]))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "broker")
    async with server.opened() as store:
        for prefix in WRITTEN_ONCE:
            with pytest.raises(StorageUnavailable, match="AccessDenied"):
                await store.put(f"{prefix}x", b"x")
            await store.put_if_absent(f"{prefix}x", b"x")
        await store.put("cluster/heartbeat/0/x", b"x")
        await store.put("cluster/heartbeat/0/x", b"y")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "somebody")
    async with server.opened() as store:
        for key in ("cluster/log/y", "cluster/heartbeat/0/y", "data/y"):
            with pytest.raises(StorageUnavailable, match="AccessDenied"):
                await store.put_if_absent(key, b"x")
        with pytest.raises(StorageUnavailable, match="AccessDenied"):
            await store.delete("cluster/log/x")


def test_every_call_that_the_s3_client_makes_has_its_action_and_no_other_is_listed() -> None:
    tree = ast.parse(Path(s3_adapter.__file__).read_text())
    made = {
        node.func.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and isinstance(node.func.value, ast.Attribute)
        and node.func.value.attr == "_client"
    }
    names = {re.sub(r"(?:^|_)([a-z])", lambda found: found[1].upper(), name) for name in made}
    assert names == set(NEEDS) | set(DOCTOR_NEEDS)


def test_obstore_sends_known_requests_to_the_store_and_serves_targets_of_archives_only() -> None:
    found: dict[str, set[str]] = {}
    for folder in ("app", "pyspark_firn"):
        for path in (REPOSITORY / folder).rglob("*.py"):
            called = set(re.findall(r"\bobstore\.(\w+)\(", path.read_text()))
            if called:
                found[str(path.relative_to(REPOSITORY))] = called
    assert found == {
        "app/objectstore/s3_short_cut.py": {"get_async", "get_range_async", "put_async", "list"},  # as NEEDS has them
        "pyspark_firn/jobs/targets.py": set(TARGET_NEEDS),  # where an archive goes, not the store
    }


async def cluster_of_two_topics(server: Server, path: Path) -> dict[str, TopicId]:
    """Topics ``mine`` and ``theirs``, each with a segment of ten records."""
    async with server.opened() as store:
        builder = await BucketBuilder.open(path, store=store)
        ids = {}
        for name in ("mine", "theirs"):
            ids[name] = await builder.create_topic(name)
            records = [(NOW_MS + n, b"k", b"%d" % n, ()) for n in range(10)]
            await builder.add_segment(ids[name], 0, [build_batch(records, base_offset=Offset(0))], chunk_bytes=300)
        return ids


async def test_spark_reads_the_topics_that_its_policy_names_and_no_other(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ids = await cluster_of_two_topics(server, tmp_path)
    server.obey("spark", policy_of("spark", server.location, topic_ids=[ids["mine"]]))
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "spark")
    rows = await asyncio.to_thread(lambda: read(server.url, subscribe="mine"))
    assert len(rows) == 10
    calls = server.calls("spark")
    assert [call for call in calls if not call["allowed"]] == []
    assert {call["call"] for call in calls} <= {"GetObject", "HeadObject", "ListObjectsV2"}
    async with server.opened() as store:
        manifest = layout.manifest_prefix(ids["theirs"], 0)
        with pytest.raises(StorageUnavailable, match=f"allow s3:ListBucket on arn:aws:s3:::{BUCKET}"):
            await store.list_objects(f"{manifest}/")
        for key in (layout.entry_key(manifest, 0), f"{layout.data_prefix(ids['theirs'], 0)}x.seg"):
            with pytest.raises(StorageUnavailable, match=r"allow s3:GetObject on arn:aws:s3:::firn-bucket/prod/\*"):
                await store.get(key)
        with pytest.raises(StorageUnavailable, match=r"allow s3:PutObject on arn:aws:s3:::firn-bucket/prod/\*"):
            await store.put_if_absent(layout.entry_key("cluster", 1_000_000), b"x")


async def test_an_http_process_may_not_touch_the_bucket_whatever_another_policy_allows(
    server: Server, tmp_path: Path
) -> None:
    documents = [policy_of("broker", server.location), policy_of("http", server.location)]
    for call, needs in NEEDS.items():
        arn = f"arn:aws:s3:::{BUCKET}" + ("" if needs.on_bucket else f"/{PREFIX}/data/x")
        assert allowed(documents[:1], needs.action, arn, {"s3:prefix": f"{PREFIX}/data/"}), call
        assert not allowed(documents, needs.action, arn, {"s3:prefix": f"{PREFIX}/data/"}), call


async def test_a_missing_object_that_s3_forbids_names_the_permission_to_list(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = policy_of("broker", server.location)
    without_list = {**policy, "Statement": [one for one in policy["Statement"] if one["Sid"] != "List"]}
    server.obey("blind", without_list)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "blind")
    told = (
        r"AccessDenied.*; allow s3:GetObject on arn:aws:s3:::firn-bucket/prod/\*, and s3:ListBucket on arn:aws:s3:::firn-bucket, "
        "because without it S3 does not say that an object is missing"
    )
    async with server.opened() as store:
        for ask in (store.get, store.head, lambda key: store.get_tail(key, 10), lambda key: store.get_range(key, 0, 1)):
            with pytest.raises(StorageUnavailable, match=told.replace("AccessDenied", "(AccessDenied|403)")):
                await ask("cluster/log/none")
        results = await check_store(store)
    assert not results[-1].passed
    assert "allow s3:ListBucket on arn:aws:s3:::firn-bucket" in results[-1].detail


async def test_a_condition_on_the_prefix_alone_would_forbid_to_know_that_an_object_is_missing(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = policy_of("broker", server.location)
    server.obey("broker", policy)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "broker")
    async with server.opened() as store:
        with pytest.raises(ObjectMissing):
            await store.get("cluster/log/none")
    text = json.dumps(policy)
    assert "StringLikeIfExists" in text
    server.obey("broker", json.loads(text.replace("StringLikeIfExists", "StringLike")))
    async with server.opened() as store:
        with pytest.raises(StorageUnavailable, match="s3:ListBucket"):
            await store.get("cluster/log/none")


@pytest.mark.ci
async def test_a_topic_is_named_by_its_name_or_its_id_and_both_print_the_same(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    ids = await cluster_of_two_topics(server, tmp_path)

    def printed(*arguments: str) -> tuple[int, str, str]:
        code = main(["iam", "policy", "--role", "spark", "--store", server.url, *arguments])
        told = capsys.readouterr()
        return code, told.out, told.err

    by_id = await asyncio.to_thread(printed, "--topic", str(ids["mine"]))
    by_name = await asyncio.to_thread(printed, "--topic", "mine")
    assert by_name == by_id
    assert by_id[0] == 0
    assert json.loads(by_id[1]) == policy_of("spark", server.location, topic_ids=[ids["mine"]])
    code, _, err = await asyncio.to_thread(printed, "--topic", "nobody")
    assert (code, "There is no topic nobody in s3://firn-bucket/prod" in err) == (2, True)
