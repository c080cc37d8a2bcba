"""Ranged GETs: the short cut is only that, and what it cannot do is told as precisely as everything else."""

from __future__ import annotations

import random
import ssl
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from app.errors import ConfigError, StorageUnavailable
from app.objectstore.api import ObjectMissing, RangeUnsatisfiable
from app.objectstore.s3_bulk import FAILURES_MAX
from tests.objectstore.scripted_server import CUT, HANG, Request, answer, refusal
from tests.objectstore.test_s3 import scripted

pytestmark = pytest.mark.usefixtures("aws_credentials")

START, END = 1_000, 600_000
CONTENT = random.Random(1).randbytes(END)
GOOD = answer(
    206, CONTENT[START:END], Content_Range=f"bytes {START}-{END - 1}/{END}", ETag='"e"',
    Last_Modified="Fri, 21 Nov 2025 08:00:00 GMT",
)  # fmt: skip


def is_short_cut(request: Request) -> bool:
    return "firn/" not in request.headers["user-agent"]


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
    async with scripted(*[refusal(404, "NoSuchKey")] * 2 * FAILURES_MAX, GOOD) as (server, store, _):
        for _ in range(FAILURES_MAX):
            with pytest.raises(ObjectMissing):
                await store.get_range("k", START, END)
        assert await store.get_range("k", START, END) == CONTENT[START:END]
    assert is_short_cut(server.requests[-1])


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
    assert [is_short_cut(request) for request in server.requests] == [True, False]


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
