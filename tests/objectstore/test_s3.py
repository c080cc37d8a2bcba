"""The S3 store when the network or the server misbehaves, and what it sends, byte by byte on a scripted server."""

from __future__ import annotations

import asyncio
import base64
import contextlib
from collections.abc import AsyncIterator

import pytest
from crc32c import crc32c

from app.core.errors import StorageUnavailable
from app.core.metrics import Registry
from app.objectstore.api import AlreadyExists, ObjectMissing, RangeUnsatisfiable
from app.objectstore.location import S3Location, parse_store_url
from app.objectstore.metered import MeteredStore
from app.objectstore.s3 import ATTEMPTS_MAX, S3Store
from tests.objectstore.conftest import NoWait, opened_s3
from tests.objectstore.scripted_s3 import OK, page, scripted
from tests.objectstore.scripted_server import CUT, HANG, ScriptedServer, answer, refusal

pytestmark = pytest.mark.usefixtures("aws_credentials")

HEAD_OK = (
    b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nLast-Modified: Fri, 21 Nov 2025 08:00:00 GMT\r\n\r\n"  # no body: HEAD
)


async def test_a_conditional_write_sends_the_condition_and_a_checksum_and_asks_for_no_continue() -> None:
    data = b"x" * 3_000_000
    async with scripted(OK) as (server, store, _):
        await store.put_if_absent("log/1", data)
    [request] = server.requests
    assert (request.method, request.target.partition("?")[0]) == ("PUT", "/bucket/cluster/log/1")
    assert request.headers["if-none-match"] == "*"
    assert request.headers["x-amz-checksum-crc32c"] == base64.b64encode(crc32c(data).to_bytes(4, "big")).decode()
    assert request.headers["content-length"] == "3000000"
    assert "expect" not in request.headers
    assert request.body == data


async def test_an_unconditional_write_sends_no_condition() -> None:
    async with scripted(OK) as (server, store, _):
        await store.put("k", b"")
    assert "if-none-match" not in server.requests[0].headers


async def test_encryption_is_asked_for_with_every_write() -> None:
    begun = answer(200, b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>")
    async with scripted(OK, OK, begun, query="&sse=aws:kms&kms_key_id=alias/firn") as (server, store, _):
        await store.put("k", b"x")
        await store.put_if_absent("k", b"x")
        await store.begin_upload("k")
    for request in server.requests:
        assert request.headers["x-amz-server-side-encryption"] == "aws:kms"
        assert request.headers["x-amz-server-side-encryption-aws-kms-key-id"] == "alias/firn"


@pytest.mark.parametrize(
    "trouble",
    [
        refusal(503, "SlowDown"),
        refusal(500, "InternalError"),
        refusal(409, "ConditionalRequestConflict"),
        refusal(400, "RequestTimeout"),
        answer(502, b"<html>Bad gateway</html>"),
        CUT,
    ],
    ids=["503", "500", "409", "request timeout", "a proxy's 502", "cut"],
)
async def test_what_may_pass_is_tried_again_with_the_same_bytes(trouble: bytes) -> None:
    async with scripted(trouble, trouble, OK) as (server, store, registry):
        await store.put_if_absent("k", b"the same")
    assert [request.body for request in server.requests] == [b"the same"] * 3
    [retries] = [sample for sample in registry.samples() if sample.name == "firn_store_retries_total"]
    assert (retries.labels, retries.value) == ((("operation", "put_if_absent"),), 2)


async def test_attempts_are_bounded() -> None:
    async with scripted(refusal(503, "SlowDown")) as (server, store, _):
        with pytest.raises(StorageUnavailable, match="SlowDown"):
            await store.put("k", b"x")
    assert len(server.requests) == ATTEMPTS_MAX


async def test_a_write_whose_answer_was_lost_finds_itself() -> None:
    async with scripted(CUT, refusal(412, "PreconditionFailed")) as (_, store, _):
        with pytest.raises(AlreadyExists):
            await store.put_if_absent("k", b"x")


@pytest.mark.ci
async def test_a_server_that_does_not_answer_ends_with_the_deadline() -> None:
    async with scripted(HANG, deadline_s=1.5, attempt_timeout_s=0.5) as (server, store, _):
        with pytest.raises(StorageUnavailable, match="no response in time"):
            await store.get("k")
        assert 1 <= len(server.requests) <= ATTEMPTS_MAX


async def test_a_server_that_is_away_is_told() -> None:
    location = parse_store_url("s3://bucket?endpoint=http://127.0.0.1:1")
    assert isinstance(location, S3Location)
    store = S3Store(location, rng=NoWait())
    await store.open()
    with pytest.raises(StorageUnavailable, match=r"Could not connect .*; correct endpoint or region in the store URL"):
        await store.get("k")
    await store.close()


@pytest.mark.ci
@pytest.mark.parametrize(
    ("status", "code", "mend"),
    [
        (403, "AccessDenied", "allow s3:PutObject on arn:aws:s3:::bucket/cluster/*"),
        (403, "InvalidAccessKeyId", "AWS_ACCESS_KEY_ID"),
        (403, "SignatureDoesNotMatch", "the secret key does not match"),
        (400, "ExpiredToken", "renew it"),
        (403, "RequestTimeTooSkewed", "set it by NTP"),
        (404, "NoSuchBucket", "create the bucket"),
        (501, "NotImplemented", "such as conditional writes"),
        (400, "AuthorizationHeaderMalformed", "add region="),
    ],
)
async def test_a_refusal_says_how_to_mend_it_and_is_not_repeated(status: int, code: str, mend: str) -> None:
    async with scripted(refusal(status, code)) as (server, store, _):
        with pytest.raises(StorageUnavailable) as raised:
            await store.put_if_absent("k", b"x")
        writes = [request for request in server.requests if request.method == "PUT"]
        assert len(writes) == 2  # the short cut's, and the one that tells
    assert code in str(raised.value)
    assert mend in str(raised.value)
    assert "put_if_absent of k in s3://bucket/cluster" in str(raised.value)


async def test_a_refusal_of_list_names_the_permission_on_the_bucket() -> None:
    async with scripted(refusal(403, "AccessDenied")) as (_, store, _):
        with pytest.raises(StorageUnavailable, match=r"allow s3:ListBucket on arn:aws:s3:::bucket\.$"):
            await store.list_objects("data/")


async def test_a_server_that_has_no_lists_is_not_one_of_s3() -> None:
    async with scripted(answer(404)) as (_, store, _):
        with pytest.raises(
            StorageUnavailable, match=r"404 .*; this is not the response of an S3 server; correct endpoint"
        ):
            await store.list_objects("data/")


async def test_a_refusal_without_a_body_is_told_too() -> None:
    async with scripted(answer(403)) as (_, store, _):
        with pytest.raises(StorageUnavailable, match="allow s3:GetObject"):
            await store.head("k")


async def test_missing_credentials_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    async with scripted(OK) as (server, store, _):
        with pytest.raises(StorageUnavailable, match="give this process credentials"):
            await store.put("k", b"x")
        assert server.requests == []


async def test_a_body_that_ends_early_is_never_an_answer() -> None:
    short = answer(200, b"0123", length=10)
    async with scripted(short, answer(200, b"0123456789")) as (_, store, _):
        assert await store.get("k") == b"0123456789"
    async with scripted(short) as (_, store, _):
        with pytest.raises(StorageUnavailable):
            await store.get("k")


@pytest.mark.parametrize(
    "wrong",
    [
        answer(206, b"345", Content_Range="bytes 3-5/10"),  # fewer bytes than were asked for
        answer(206, b"2345", Content_Range="bytes 2-5/10"),  # others
        answer(206, b"3456", Content_Range="bytes three"),
        answer(200, b"0123456789"),  # the range ignored
    ],
    ids=["fewer", "others", "unreadable", "ignored"],
)
async def test_another_range_than_was_asked_for_is_never_an_answer(wrong: bytes) -> None:
    async with scripted(wrong) as (_, store, _):
        with pytest.raises(StorageUnavailable):
            await store.get_range("k", 3, 7)


async def test_ranges_are_asked_for_by_their_last_byte_and_by_suffix() -> None:
    middle = answer(
        206, b"3456", Content_Range="bytes 3-6/10", ETag='"e"', Last_Modified="Fri, 21 Nov 2025 08:00:00 GMT"
    )
    tail = answer(206, b"789", Content_Range="bytes 7-9/10")
    async with scripted(middle, tail) as (server, store, _):
        assert await store.get_range("k", 3, 7) == b"3456"
        assert await store.get_tail("k", 3) == (b"789", 10)
    assert [request.headers["range"] for request in server.requests] == ["bytes=3-6", "bytes=-3"]


def sized(size_bytes: int) -> bytes:
    """The answer to HeadObject."""
    return answer(200, length=size_bytes, Last_Modified="Fri, 21 Nov 2025 08:00:00 GMT")


async def test_a_short_object_is_read_from_its_beginning_where_the_server_fails_at_a_longer_suffix() -> None:
    """As s3s-fs does. Its first failure is met by the short cut."""
    failure = refusal(500, "InternalError")
    whole = answer(206, b"789", Content_Range="bytes 0-2/3")
    async with scripted(failure, failure, sized(3), whole) as (server, store, _):
        assert await store.get_tail("k", 5) == (b"789", 3)
    assert [request.headers.get("range") for request in server.requests] == ["bytes=-5", "bytes=-5", None, "bytes=0-2"]


async def test_another_failure_of_the_server_at_a_suffix_stays_one() -> None:
    failure = refusal(500, "InternalError")
    tail = answer(206, b"789", Content_Range="bytes 7-9/10")
    async with scripted(failure, failure, sized(10), tail) as (server, store, _):
        assert await store.get_tail("k", 3) == (b"789", 10)
    assert [request.headers.get("range") for request in server.requests] == ["bytes=-3", "bytes=-3", None, "bytes=-3"]


async def test_a_range_past_the_end_is_told() -> None:
    async with scripted(refusal(416, "InvalidRange")) as (_, store, _):
        with pytest.raises(RangeUnsatisfiable):
            await store.get_range("k", 10, 20)


async def test_a_short_page_is_not_taken_for_the_last() -> None:
    async with scripted(page("a", "b", more="next"), page(more="again"), page("c")) as (server, store, _):
        assert [info.key for info in await store.list_objects("", start_after="0", limit=999)] == ["a", "b", "c"]
    assert "start-after=cluster%2F0" in server.requests[0].target
    assert "continuation-token=next" in server.requests[1].target
    assert "continuation-token=again" in server.requests[2].target
    assert "max-keys=997" in server.requests[2].target


async def test_a_list_is_read_in_the_namespace_of_s3_and_without_one() -> None:
    plain = page("a", "b")
    named = page("a", "b", space=' xmlns="http://s3.amazonaws.com/doc/2006-03-01/"')
    async with scripted(plain, named) as (_, store, _):
        found = await store.list_objects("")
        assert found == await store.list_objects("")
    assert [(info.key, info.size_bytes, info.modified_ms) for info in found] == [
        ("a", 1, 1763712000000),
        ("b", 1, 1763712000000),
    ]


async def test_a_list_that_is_no_xml_is_no_answer() -> None:
    async with scripted(answer(200, b"<html><p>Welcome to the hotel's network")) as (_, store, _):
        with pytest.raises(StorageUnavailable):
            await store.list_objects("")


async def test_uploads_are_listed_over_all_pages() -> None:
    def uploads(name: str, rest: str) -> bytes:
        entry = (
            f"<Key>cluster/{name}</Key><UploadId>id-{name}</UploadId><Initiated>2025-11-21T08:00:00.000Z</Initiated>"
        )
        body = f"<ListMultipartUploadsResult><Upload>{entry}</Upload>{rest}</ListMultipartUploadsResult>"
        return answer(200, body.encode())

    more = "<IsTruncated>true</IsTruncated><NextKeyMarker>m</NextKeyMarker><NextUploadIdMarker>n</NextUploadIdMarker>"
    async with scripted(uploads("b", more), uploads("a", "")) as (server, store, _):
        found = await store.list_uploads("")
    assert [(info.key, info.upload_id) for info in found] == [("a", "id-a"), ("b", "id-b")]
    assert "key-marker=m" in server.requests[1].target
    assert "upload-id-marker=n" in server.requests[1].target


async def test_a_key_that_could_not_be_deleted_is_told() -> None:
    body = b"<DeleteResult><Error><Key>cluster/b</Key><Code>AccessDenied</Code><Message>no</Message></Error></DeleteResult>"
    async with scripted(answer(200, body)) as (_, store, _):
        with pytest.raises(StorageUnavailable, match="allow s3:DeleteObject"):
            await store.delete_many(["a", "b"])


BEGUN = answer(200, b"<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>")
COMPLETED = answer(200, b"<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>")
ERROR_IN_200 = answer(200, b"<?xml version='1.0'?><Error><Code>InternalError</Code><Message>oops</Message></Error>")


async def test_completing_sends_the_condition_and_survives_an_error_inside_a_200() -> None:
    async with scripted(BEGUN, OK, ERROR_IN_200, COMPLETED) as (server, store, _):
        upload = await store.begin_upload("k")
        await upload.put_part(1, b"x")
        await upload.complete()
    assert [request.headers.get("if-none-match") for request in server.requests] == [None, None, "*", "*"]


async def test_a_completion_whose_answer_was_lost_finds_itself() -> None:
    async with scripted(BEGUN, OK, CUT, refusal(404, "NoSuchUpload"), HEAD_OK) as (_, store, _):
        upload = await store.begin_upload("k")
        await upload.put_part(1, b"x")
        with pytest.raises(AlreadyExists):
            await upload.complete()


async def test_a_completion_of_an_aborted_upload_finds_nothing() -> None:
    async with scripted(BEGUN, OK, refusal(404, "NoSuchUpload"), answer(404)) as (_, store, _):
        upload = await store.begin_upload("k")
        await upload.put_part(1, b"x")
        with pytest.raises(ObjectMissing):
            await upload.complete()


async def test_requests_at_a_time_are_bounded() -> None:
    async with scripted(OK, in_flight_max=3) as (server, store, _):
        server.gate = asyncio.Event()
        async with asyncio.TaskGroup() as group:
            for number in range(10):
                group.create_task(store.put(f"k/{number}", b"x"))
            while server.busy < 3:
                await asyncio.sleep(0)
            server.gate.set()
        assert server.busy_max == 3
        assert len(server.requests) == 10


async def test_objects_carry_the_key_that_they_are_written_with_and_others_do_not(
    moto_endpoint: str, aws_credentials: None
) -> None:
    async with opened_s3(moto_endpoint) as store:
        own = MeteredStore(store, Registry()).encrypted_with("alias/topic-key")
        await store.put("plain", b"x")
        await own.put_if_absent("small", b"x")
        upload = await own.begin_upload("large")
        await upload.put_part(1, b"x")
        await upload.complete()
        place = store.location
        heads = {
            key: await store._client.head_object(Bucket=place.bucket, Key=place.prefix + key)
            for key in ("plain", "small", "large")
        }
        assert {key: head.get("SSEKMSKeyId") for key, head in heads.items()} == {
            "plain": None,
            "small": "alias/topic-key",
            "large": "alias/topic-key",
        }
        assert heads["small"]["ServerSideEncryption"] == heads["large"]["ServerSideEncryption"] == "aws:kms"
        assert await store.get("small") == b"x"


# --- directory buckets (S3 Express One Zone) --------------------------------------------------------------------------

SESSION = answer(
    200,
    b"<CreateSessionResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'><Credentials><SessionToken>of-session</SessionToken>"
    b"<SecretAccessKey>secret</SecretAccessKey><AccessKeyId>KEY</AccessKeyId><Expiration>2126-11-26T10:00:00Z</Expiration>"
    b"</Credentials></CreateSessionResult>",
)


def listing(*keys: str, more: str = "") -> bytes:
    entries = "".join(
        f"<Contents><Key>{key}</Key><Size>7</Size><LastModified>2025-11-21T08:00:00.000Z</LastModified></Contents>"
        for key in keys
    )
    truncated = f"<IsTruncated>true</IsTruncated><NextContinuationToken>{more}</NextContinuationToken>" if more else ""
    body = f"<ListBucketResult xmlns='http://s3.amazonaws.com/doc/2006-03-01/'>{truncated}{entries}</ListBucketResult>"
    return answer(200, body.encode())


@contextlib.asynccontextmanager
async def directory_bucket(*answers: bytes) -> AsyncIterator[tuple[ScriptedServer, S3Store]]:
    async with ScriptedServer([SESSION, *answers]) as server:
        location = parse_store_url(f"s3://fast--use1-az4--x-s3/c?region=us-east-1&endpoint={server.endpoint}")
        assert isinstance(location, S3Location)
        assert location.is_directory_bucket
        store = S3Store(location, rng=NoWait())
        await store.open()
        try:
            yield server, store
        finally:
            await store.close()


async def test_a_directory_bucket_gets_a_session_and_conditional_writes() -> None:
    async with directory_bucket(OK) as (server, store):
        await store.put_if_absent("wal/1/x", b"abc")
        await store.put_if_absent("wal/1/y", b"abc")
    session, first, second = server.requests
    assert (session.method, session.target) == ("GET", "/fast--use1-az4--x-s3?session")
    assert "/us-east-1/s3express/" in session.headers["authorization"]
    for request in (first, second):
        assert request.headers["if-none-match"] == "*"
        assert request.headers["x-amz-s3session-token"] == "of-session"
        assert request.headers["x-amz-checksum-crc32c"]


async def test_what_a_directory_bucket_lists_in_any_order_is_sorted_here() -> None:
    pages = (
        listing("c/wal/1/5", "c/wal/1/2", "c/wal/1/9", more="next"),
        listing("c/wal/1/3", "c/wal/2/1", "c/wal/1/4"),
    )
    async with directory_bucket(*pages) as (server, store):
        found = await store.list_objects("wal/1/", start_after="wal/1/2", limit=3)
        assert [info.key for info in found] == ["wal/1/3", "wal/1/4", "wal/1/5"]
    _, first, second = server.requests
    # It knows no StartAfter, and only prefixes that end with a slash.
    assert "prefix=c%2Fwal%2F1%2F&" in first.target
    assert "start-after" not in first.target
    assert "max-keys=1000" in first.target
    assert "continuation-token=next" in second.target


async def test_a_prefix_that_ends_within_a_name_is_listed_from_its_folder() -> None:
    async with directory_bucket(listing("c/wal/12", "c/wal/21", "c/wal/1")) as (server, store):
        assert [info.key for info in await store.list_objects("wal/1")] == ["wal/1", "wal/12"]
    assert "prefix=c%2Fwal%2F&" in server.requests[1].target


async def test_a_directory_bucket_says_what_to_allow_and_has_no_versions() -> None:
    async with directory_bucket(refusal(403, "AccessDenied")) as (_, store):
        with pytest.raises(
            StorageUnavailable, match="allow s3express:CreateSession on the directory bucket fast--use1"
        ):
            await store.get("wal/1/x")
    rules = answer(
        200,
        b"<LifecycleConfiguration xmlns='http://s3.amazonaws.com/doc/2006-03-01/'><Rule><ID>old</ID><Status>Enabled</Status>"
        b"<Filter><Prefix>c/</Prefix></Filter><Expiration><Days>1</Days></Expiration></Rule></LifecycleConfiguration>",
    )
    async with directory_bucket(rules) as (server, store):
        found = await store.bucket_rules()
        assert not found.versioned
        assert [rule["ID"] for rule in found.lifecycle] == ["old"]
        assert not any("versioning" in request.target for request in server.requests)


async def test_retries_of_a_wal_store_have_its_label() -> None:
    async with ScriptedServer([refusal(503, "SlowDown"), OK]) as server:
        location = parse_store_url(f"s3://bucket?endpoint={server.endpoint}")
        assert isinstance(location, S3Location)
        registry = Registry()
        store = S3Store(location, rng=NoWait(), registry=registry, of_wal=True)
        await store.open()
        await store.put_if_absent("wal/1/x", b"abc")
        await store.close()
    [retries] = [sample for sample in registry.samples() if sample.name == "firn_store_retries_total"]
    assert (retries.labels, retries.value) == ((("operation", "put_if_absent"), ("store", "wal")), 1)


async def test_who_may_not_ask_for_the_rules_of_a_bucket_is_told_so() -> None:
    async with scripted(refusal(403, "AccessDenied")) as (_, store, _):
        with pytest.raises(StorageUnavailable, match="allow s3:GetBucketVersioning on arn:aws:s3:::bucket"):
            await store.bucket_rules()
