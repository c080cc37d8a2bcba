"""The header of the key in each form, and the digest of a request."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.errors import RequestRejected
from app.exactly_once.keys import RequestDigest, key_of


@pytest.mark.parametrize(
    ("value", "key"),
    [
        (b"order-1", b"order-1"),
        (b'"order-1"', b"order-1"),
        (b'  "order 1" ', b"order 1"),
        (rb'"a\"b\\c"', rb'a"b\c'),
        (b"\xc3\xa9", b"\xc3\xa9"),
        (b"k" * 255, b"k" * 255),
        (b'"' + b"k" * 255 + b'"', b"k" * 255),
    ],
)
def test_a_quoted_key_and_a_bare_one_are_the_same(value: bytes, key: bytes) -> None:
    assert key_of([value]) == key


def test_a_request_without_the_header_has_no_key() -> None:
    assert key_of([]) is None


@pytest.mark.parametrize(
    ("values", "part"),
    [
        ([b"a", b"a"], "2 Idempotency-Key headers"),
        ([b""], "0 bytes"),
        ([b'""'], "0 bytes"),
        ([b"k" * 256], "256 bytes"),
        ([b'"' + b"k" * 256 + b'"'], "256 bytes"),
        ([b"a\nb"], "control character"),
        ([b"a\x7fb"], "control character"),
        ([b'a"b'], "quotation mark inside"),
        ([b'"a'], "no quotation mark at its end"),
        ([b'"a"; b=1'], "goes on after"),
        ([rb'"a\n"'], "escape"),
        ([b'"a\\'], "escape"),
    ],
)
def test_a_header_that_is_no_key_is_refused(values: list[bytes], part: str) -> None:
    with pytest.raises(RequestRejected, match=part):
        key_of(values)


@given(key=st.binary(min_size=1, max_size=255).filter(lambda key: min(key) >= 0x20 and 0x7F not in key))
def test_every_printable_key_can_be_quoted(key: bytes) -> None:
    assert key_of([b'"' + key.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"']) == key


@given(value=st.binary(max_size=300))
def test_any_bytes_give_a_key_or_a_refusal(value: bytes) -> None:
    with contextlib.suppress(RequestRejected):
        key = key_of([value])
        assert key
        assert len(key) <= 255


def digest_of(
    method: str = "POST", path: str = "/v3/a", content_type: str = "application/json", body: bytes = b"{}"
) -> bytes:
    digest = RequestDigest(method, path, content_type)
    for byte in body:
        digest.feed(bytes([byte]))
    return digest.digest()


def test_the_parts_of_a_request_change_its_digest_and_its_chunks_do_not() -> None:
    whole = RequestDigest("post", "/v3/a", "Application/JSON; charset=utf-8")
    whole.feed(b"{}")
    assert whole.digest() == digest_of()
    others = [
        digest_of(method="PUT"),
        digest_of(path="/v3/b"),
        digest_of(content_type="text/plain"),
        digest_of(body=b"{} "),
        digest_of(path="/v3", content_type="/aapplication/json"),
    ]
    assert len({digest_of(), *others}) == 6
