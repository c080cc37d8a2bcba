"""Metadata, signatures and retries: what a machine asks before anything is installed."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import botocore.auth
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotocoreCredentials
from firn_aws import TRIES_MAX, Aws, AwsError, Credentials, Metadata, Response, Unreachable, UrllibHttp, signed

from tests.infra.bootstrap.conftest import REGION, FakeClock
from tests.infra.imds import Instance, LifecycleServer, MetadataServer

KEYS = Credentials("AKIATEST", "secret/+key", "token", 0)


class Script:
    """Answers in order; an OSError among them is raised. The last one is repeated."""

    def __init__(self, *answers: Response | OSError) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, str, Mapping[str, str]]] = []

    def exchange(self, method: str, url: str, headers: Mapping[str, str], body: bytes, timeout_s: float) -> Response:
        del body, timeout_s
        self.asked.append((method, url, headers))
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, OSError):
            raise answer
        return answer


def ok(text: str) -> Response:
    return Response(200, {}, text.encode())


@pytest.mark.parametrize(
    ("method", "url", "body"),
    [
        ("GET", "https://bucket.s3.eu-central-1.amazonaws.com/firn/a%20b%2Bc/x", b""),
        ("PUT", "http://127.0.0.1:5000/bucket/cluster/name", b"{}"),
        ("GET", "https://bucket.s3.eu-central-1.amazonaws.com/?list-type=2&prefix=a%2Fb", b""),
    ],
)
def test_a_signature_is_the_one_that_botocore_makes(
    monkeypatch: pytest.MonkeyPatch, method: str, url: str, body: bytes
) -> None:
    moment = datetime(2026, 11, 23, 2, 30, tzinfo=UTC)
    monkeypatch.setattr(botocore.auth, "get_current_datetime", lambda remove_tzinfo=True: moment.replace(tzinfo=None))
    request = AWSRequest(method, url, data=body, headers={"If-None-Match": "*"})
    request.context["payload_signing_enabled"] = True
    request.headers["X-Amz-Content-SHA256"] = hashlib.sha256(body).hexdigest()
    request.context["client_config"] = type("C", (), {"s3": {"payload_signing_enabled": True}})()
    S3SigV4Auth(BotocoreCredentials(KEYS.access_key, KEYS.secret_key, KEYS.token), "s3", REGION).add_auth(request)
    mine = signed(
        method,
        url,
        {"If-None-Match": "*"},
        body,
        credentials=KEYS,
        service="s3",
        region=REGION,
        now_s=moment.timestamp(),
    )
    assert mine["authorization"] == request.headers["Authorization"]


def test_metadata_is_read_with_a_token_that_is_kept(metadata: MetadataServer) -> None:
    client = Metadata(UrllibHttp(), FakeClock(), metadata.url)
    assert client.need("meta-data/instance-id") == metadata.instance.instance_id
    assert client.need("meta-data/placement/availability-zone") == "eu-central-1a"
    assert [method for method, _, _ in metadata.asked] == ["PUT", "GET", "GET"]


def test_a_token_that_is_refused_is_asked_for_again(metadata: MetadataServer) -> None:
    client = Metadata(UrllibHttp(), FakeClock(), metadata.url)
    client.need("meta-data/instance-id")
    metadata.forget_tokens()
    assert client.need("meta-data/instance-id") == metadata.instance.instance_id


def test_a_metadata_service_that_refuses_every_token_is_an_error_and_not_a_loop() -> None:
    http = Script(ok("token"), Response(401, {}, b""), ok("token"), Response(401, {}, b""))
    with pytest.raises(AwsError, match="refuses meta-data/x"):
        Metadata(http, FakeClock()).get("meta-data/x")


def test_what_is_not_there_is_none(metadata: MetadataServer) -> None:
    client = Metadata(UrllibHttp(), FakeClock(), metadata.url)
    assert client.get("meta-data/spot/instance-action") is None
    assert client.get("meta-data/tags/instance") is None


def test_credentials_are_asked_for_again_before_they_end(metadata: MetadataServer) -> None:
    clock = FakeClock()
    metadata.instance.credentials_s = 400
    client = Metadata(UrllibHttp(), clock, metadata.url)
    clock.s = metadata_now = datetime.now(UTC).timestamp()
    first = client.credentials()
    assert client.credentials() is first
    clock.s = metadata_now + 200
    assert client.credentials() is not first
    assert "rehearsal-secret" not in repr(first)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("<html>", "are damaged"),
        ("[]", "are damaged"),
        ('{"Code": "Success", "AccessKeyId": "A", "Token": "t"}', "have no 'Expiration'"),
        ('{"Code": "Success", "Expiration": "2026-11-23T00:00:00Z", "AccessKeyId": "A"}', "have no 'SecretAccessKey'"),
        ('{"Code": "Success", "Expiration": 5, "SecretAccessKey": "s3cret"}', "are damaged"),
        ('{"Code": "Success", "Expiration": "soon", "SecretAccessKey": "s3cret"}', "are damaged"),
        ('{"Code": "Failed"}', "role firn has no credentials"),
    ],
)
def test_credentials_that_cannot_be_read_are_refused_without_a_word_of_them(text: str, words: str) -> None:
    http = Script(ok("token"), ok("firn"), ok(text))
    with pytest.raises(AwsError, match=words) as caught:
        Metadata(http, FakeClock()).credentials()
    assert "s3cret" not in str(caught.value)


def test_an_answer_that_is_no_xml_is_as_good_as_none(metadata: MetadataServer) -> None:
    clock = FakeClock()
    clock.s = datetime.now(UTC).timestamp()
    aws = Aws(Script(ok("<html><p>")), clock, Metadata(UrllibHttp(), clock, metadata.url), REGION)
    with pytest.raises(Unreachable, match="answers DescribeInstances with something that is no XML"):
        aws.query("ec2", "DescribeInstances")


def test_a_metadata_service_that_is_away_is_asked_again_and_then_given_up() -> None:
    clock = FakeClock()
    http = Script(OSError("refused"))
    with pytest.raises(Unreachable, match=r"169\.254\.169\.254 does not answer"):
        Metadata(http, clock).get("meta-data/x")
    assert len(http.asked) == TRIES_MAX
    assert clock.s - FakeClock().s == pytest.approx(7.75)


@pytest.mark.parametrize(
    "answer",
    [
        Response(503, {}, b"<Error><Code>SlowDown</Code></Error>"),
        Response(400, {}, b"<Response><Errors><Error><Code>RequestLimitExceeded</Code></Error></Errors></Response>"),
        OSError("reset"),
    ],
    ids=["503", "throttled", "reset"],
)
def test_a_service_that_cannot_now_is_asked_again(answer: Response | OSError, metadata: MetadataServer) -> None:
    clock = FakeClock()
    credentials = Metadata(UrllibHttp(), clock, metadata.url)
    clock.s = datetime.now(UTC).timestamp()
    http = Script(answer, answer, ok("<R xmlns='x'><a>1</a></R>"))
    root = Aws(http, clock, credentials, REGION).query("ec2", "DescribeVolumes")
    assert root.findtext("a") == "1"
    assert http.asked[0][1] == "https://ec2.eu-central-1.amazonaws.com/"


def test_objects_are_asked_for_where_they_are(metadata: MetadataServer) -> None:
    clock = FakeClock()
    clock.s = datetime.now(UTC).timestamp()
    http = Script(ok("x"))
    aws = Aws(http, clock, Metadata(UrllibHttp(), clock, metadata.url), REGION)
    aws.get_object("plain", "a b/c+d")
    aws.get_object("with.dots", "k", region="us-east-1")
    aws.get_object("plain", "k", endpoint="http://127.0.0.1:1")
    assert [url for _, url, _ in http.asked] == [
        "https://plain.s3.eu-central-1.amazonaws.com/a%20b/c%2Bd",
        "https://s3.us-east-1.amazonaws.com/with.dots/k",
        "http://127.0.0.1:1/plain/k",
    ]


def test_a_bucket_of_another_region_is_an_error_and_not_followed(metadata: MetadataServer) -> None:
    clock = FakeClock()
    clock.s = datetime.now(UTC).timestamp()
    moved = Response(301, {"location": "https://elsewhere"}, b"<Error><Code>PermanentRedirect</Code></Error>")
    aws = Aws(Script(moved), clock, Metadata(UrllibHttp(), clock, metadata.url), REGION)
    with pytest.raises(AwsError, match="PermanentRedirect"):
        aws.get_object("b", "k")


# --- the stand-ins are as strict as what they stand for


def ask(server: MetadataServer, path: str, method: str = "GET", **headers: str) -> Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return UrllibHttp().exchange(method, f"{server.url}/latest/{path}", named, b"", 5)


def test_the_stand_in_answers_nothing_without_a_token(metadata: MetadataServer) -> None:
    assert ask(metadata, "meta-data/instance-id").status == 401
    assert ask(metadata, "meta-data/instance-id", X_aws_ec2_metadata_token="made up").status == 401


@pytest.mark.parametrize("ttl", ["", "0", "21601", "-1", "long"])
def test_the_stand_in_gives_no_token_without_a_time_to_live(metadata: MetadataServer, ttl: str) -> None:
    assert ask(metadata, "api/token", "PUT", X_aws_ec2_metadata_token_ttl_seconds=ttl).status == 400


def test_the_stand_in_refuses_requests_through_a_proxy(metadata: MetadataServer) -> None:
    answer = ask(metadata, "api/token", "PUT", X_aws_ec2_metadata_token_ttl_seconds="60", X_Forwarded_For="1.2.3.4")
    assert answer.status == 403


def test_a_token_of_the_stand_in_runs_out() -> None:
    now = [1000.0]
    server = MetadataServer(Instance(), now_s=lambda: now[0])
    try:
        token = ask(server, "api/token", "PUT", X_aws_ec2_metadata_token_ttl_seconds="60").text
        assert ask(server, "meta-data/instance-id", X_aws_ec2_metadata_token=token).status == 200
        now[0] += 61
        assert ask(server, "meta-data/instance-id", X_aws_ec2_metadata_token=token).status == 401
    finally:
        server.close()


def test_the_stand_in_shows_tags_only_if_they_are_allowed_and_tells_its_hop_limit(metadata: MetadataServer) -> None:
    metadata.instance.tags = {"Name": "broker"}
    metadata.instance.hop_limit = 2
    token = ask(metadata, "api/token", "PUT", X_aws_ec2_metadata_token_ttl_seconds="60")
    assert token.headers["x-hop-limit"] == "2"
    assert ask(metadata, "meta-data/tags/instance", X_aws_ec2_metadata_token=token.text).status == 404
    metadata.instance.tags_allowed = True
    assert ask(metadata, "meta-data/tags/instance/Name", X_aws_ec2_metadata_token=token.text).text == "broker"


def query(server: LifecycleServer, metadata: MetadataServer, action: str, **parameters: str) -> Any:
    clock = FakeClock()
    clock.s = datetime.now(UTC).timestamp()
    http = UrllibHttp()
    endpoints = {"autoscaling": server.url}
    return Aws(http, clock, Metadata(http, clock, metadata.url), REGION, endpoints).query(
        "autoscaling", action, **parameters
    )


def test_the_stand_in_completes_only_an_action_that_is_under_way(
    hooks: LifecycleServer, metadata: MetadataServer
) -> None:
    names = {"AutoScalingGroupName": "g", "LifecycleHookName": "h", "InstanceId": "i"}
    with pytest.raises(AwsError, match="No active Lifecycle Action"):
        query(hooks, metadata, "CompleteLifecycleAction", LifecycleActionResult="CONTINUE", **names)
    hooks.begin("g", "h", "i")
    with pytest.raises(AwsError, match="CONTINUE or ABANDON"):
        query(hooks, metadata, "CompleteLifecycleAction", **names)
    query(hooks, metadata, "RecordLifecycleActionHeartbeat", **names)
    query(hooks, metadata, "CompleteLifecycleAction", LifecycleActionResult="CONTINUE", **names)
    assert hooks.wait_until_done("g", "h", "i", 0) == "CONTINUE"
    assert threading.active_count() > 0
    unsigned = UrllibHttp().exchange("POST", hooks.url, {}, b"Action=CompleteLifecycleAction", 5)
    assert unsigned.status == 403
