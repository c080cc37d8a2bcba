"""The short cut is only that, and what it cannot do is told as precisely as everything else."""

from __future__ import annotations

import hashlib
import random
import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from app.core.errors import ConfigError, StorageUnavailable
from app.core.units import TimestampMs
from app.objectstore.api import AlreadyExists, ObjectInfo, ObjectMissing, RangeUnsatisfiable
from app.objectstore.s3_short_cut import FAILURES_MAX, PUT_BYTES_MAX
from tests.objectstore.scripted_s3 import OK, page, scripted
from tests.objectstore.scripted_server import CUT, HANG, Request, answer, refusal

pytestmark = pytest.mark.usefixtures("aws_credentials")

START, END = 1_000, 600_000
CONTENT = random.Random(1).randbytes(END)
GOOD = answer(
    206, CONTENT[START:END], Content_Range=f"bytes {START}-{END - 1}/{END}", ETag='"e"',
    Last_Modified="Fri, 21 Nov 2025 08:00:00 GMT",
)  # fmt: skip


def is_short_cut(request: Request) -> bool:
    return "obstore" in request.headers["user-agent"]


async def test_a_range_takes_the_short_cut_with_the_same_credentials() -> None:
    async with scripted(GOOD, query="&region=eu-central-1") as (server, store, _):
        assert await store.get_range("k", START, END) == CONTENT[START:END]
    [request] = server.requests
    assert is_short_cut(request)
    assert request.target == "/bucket/cluster/k"
    assert request.headers["range"] == f"bytes={START}-{END - 1}"
    assert "/eu-central-1/s3/aws4_request" in request.headers["authorization"]


@pytest.fixture
def authority(tmp_path: Path) -> tuple[ssl.SSLContext, Path]:
    """A server's end of TLS for 127.0.0.1, and the certificate by which a client knows it."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "an authority of our own")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (tmp_path / "ca.pem").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    (tmp_path / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "ca.pem", tmp_path / "key.pem")
    return context, tmp_path / "ca.pem"


async def test_the_short_cut_knows_the_authorities_that_the_environment_names(
    authority: tuple[ssl.SSLContext, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    context, certificates = authority
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificates))
    async with scripted(GOOD, tls=context) as (server, store, _):
        assert await store.get_range("k", START, END) == CONTENT[START:END]
    assert [is_short_cut(request) for request in server.requests] == [True]


async def test_a_bundle_of_authorities_that_cannot_be_read_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(tmp_path / "none.pem"))
    with pytest.raises(ConfigError, match=r"none\.pem"):
        async with scripted(GOOD):
            pass


async def test_that_an_object_is_missing_is_no_failure_of_the_short_cut() -> None:
    async with scripted(*[refusal(404, "NoSuchKey")] * FAILURES_MAX, GOOD) as (server, store, _):
        for _ in range(FAILURES_MAX):
            with pytest.raises(ObjectMissing):
                await store.get_range("k", START, END)
        assert await store.get_range("k", START, END) == CONTENT[START:END]
    assert [is_short_cut(request) for request in server.requests] == [True] * (FAILURES_MAX + 1)


@pytest.mark.parametrize(
    "trouble",
    [
        refusal(503, "SlowDown"),
        CUT,
        answer(206, CONTENT[: END - START], Content_Range=f"bytes 0-{END - START - 1}/{END}", ETag='"e"'),
        answer(206, CONTENT[START : END - 1], length=END - START, Content_Range=f"bytes {START}-{END - 1}/{END}"),
    ],
)
async def test_what_the_short_cut_cannot_do_is_asked_again(trouble: bytes) -> None:
    async with scripted(trouble, GOOD) as (server, store, _):
        assert await store.get_range("k", START, END) == CONTENT[START:END]
    assert [is_short_cut(request) for request in server.requests] == [True, False]


async def test_a_short_cut_that_hangs_is_not_tried_again() -> None:
    async with scripted(HANG, GOOD, attempt_timeout_s=2.0) as (server, store, _):
        assert await store.get_range("k", START, END) == CONTENT[START:END]
    # The answer itself is asked for once more where the machine stands still.
    assert [is_short_cut(request) for request in server.requests] == [True] + [False] * (len(server.requests) - 1)
    assert len(server.requests) > 1


async def test_what_is_wrong_is_told_by_the_second_answer() -> None:
    for code, error in ((refusal(404, "NoSuchKey"), ObjectMissing), (refusal(416, "InvalidRange"), RangeUnsatisfiable)):
        async with scripted(code) as (_, store, _):
            with pytest.raises(error):
                await store.get_range("k", START, END)
    async with scripted(refusal(403, "AccessDenied")) as (_, store, _):
        with pytest.raises(StorageUnavailable, match="s3:GetObject"):
            await store.get_range("k", START, END)


async def test_an_object_that_ends_within_the_range_is_answered_up_to_its_end() -> None:
    short = answer(206, CONTENT[START : END - 9], Content_Range=f"bytes {START}-{END - 10}/{END - 9}", ETag='"e"')
    async with scripted(short) as (_, store, _):
        assert await store.get_range("k", START, END) == CONTENT[START : END - 9]


async def test_a_short_cut_that_never_works_is_left_alone() -> None:
    answers = [refusal(503, "SlowDown"), GOOD] * FAILURES_MAX + [GOOD] * 2
    async with scripted(*answers) as (server, store, _):
        for _ in range(FAILURES_MAX + 2):
            assert await store.get_range("k", START, END) == CONTENT[START:END]
    assert [is_short_cut(request) for request in server.requests] == [True, False] * FAILURES_MAX + [False, False]


def whole(data: bytes) -> bytes:
    return answer(200, data, ETag='"e"', Last_Modified="Fri, 21 Nov 2025 08:00:00 GMT")


async def test_a_whole_object_and_the_end_of_one_take_the_short_cut() -> None:
    tail = answer(
        206, CONTENT[-64:], Content_Range=f"bytes {END - 64}-{END - 1}/{END}", ETag='"e"',
        Last_Modified="Fri, 21 Nov 2025 08:00:00 GMT",
    )  # fmt: skip
    async with scripted(whole(CONTENT), tail) as (server, store, _):
        assert await store.get("k") == CONTENT
        assert await store.get_tail("k", 64) == (CONTENT[-64:], END)
    assert [is_short_cut(request) for request in server.requests] == [True, True]
    assert server.requests[1].headers["range"] == "bytes=-64"


@pytest.mark.parametrize(
    "trouble",
    [
        refusal(416, "InvalidRange"),
        answer(
            206, CONTENT[:64], Content_Range=f"bytes 0-63/{END}", ETag='"e"',
            Last_Modified="Fri, 21 Nov 2025 08:00:00 GMT",
        ),
    ],
)  # fmt: skip
async def test_an_end_that_the_short_cut_cannot_have_is_asked_again(trouble: bytes) -> None:
    async with scripted(trouble, answer(416, b"<Error><Code>InvalidRange</Code></Error>")) as (server, store, _):
        assert await store.get_tail("k", 64) == (b"", 0)
    assert [is_short_cut(request) for request in server.requests] == [True, False]


async def test_a_small_object_is_put_once_on_the_condition_that_there_is_none() -> None:
    async with scripted(OK) as (server, store, _):
        await store.put_if_absent("k", memoryview(b"entry"))
    [request] = server.requests
    assert is_short_cut(request)
    assert (request.headers["if-none-match"], request.body) == ("*", b"entry")
    assert request.headers["x-amz-content-sha256"] == hashlib.sha256(b"entry").hexdigest()


async def test_a_large_object_and_one_of_another_key_take_no_short_cut() -> None:
    async with scripted(OK) as (server, store, _):
        await store.put_if_absent("k", bytes(PUT_BYTES_MAX + 1))
        await store.encrypted_with("arn:aws:kms:eu-central-1:1:key/k").put_if_absent("k", b"entry")
    assert [is_short_cut(request) for request in server.requests] == [False, False]


async def test_an_object_that_is_there_is_an_answer() -> None:
    async with scripted(refusal(412, "PreconditionFailed")) as (server, store, _):
        with pytest.raises(AlreadyExists):
            await store.put_if_absent("k", b"entry")
    assert len(server.requests) == 1


async def test_a_conflict_of_two_writers_is_not_taken_for_an_object_that_is_there() -> None:
    async with scripted(refusal(409, "ConditionalRequestConflict"), OK) as (server, store, _):
        await store.put_if_absent("k", b"entry")
    assert [is_short_cut(request) for request in server.requests] == [True, False]


async def test_all_pages_of_a_list_are_one_answer() -> None:
    async with scripted(page("a", "b", more="next"), page(more="again"), page("c")) as (server, store, _):
        found = await store.list_objects("", start_after="0")
    assert found == [ObjectInfo(key, 1, TimestampMs(1763712000000)) for key in "abc"]
    assert all(is_short_cut(request) for request in server.requests)
    assert "start-after=cluster%2F0" in server.requests[0].target


@pytest.mark.parametrize("asked", [{"prefix": "log/0000"}, {"prefix": "log/", "limit": 1}])
async def test_a_list_that_obstore_cannot_ask_for_takes_no_short_cut(asked: dict[str, Any]) -> None:
    async with scripted(page("log/00001")) as (server, store, _):
        assert [info.key for info in await store.list_objects(**asked)] == ["log/00001"]
    assert not is_short_cut(server.requests[0])


async def test_a_missing_bucket_is_not_taken_for_a_missing_object() -> None:
    async with scripted(refusal(404, "NoSuchBucket")) as (server, store, _):
        with pytest.raises(StorageUnavailable, match="create the bucket"):
            await store.get("k")
    assert [is_short_cut(request) for request in server.requests] == [True, False]
