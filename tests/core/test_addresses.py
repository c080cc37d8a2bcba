"""One address has one form, and this machine is known by its addresses."""

from __future__ import annotations

import pytest

from app.core.addresses import is_loopback, plain_address, read_address


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("::FFFF:A00:1", "10.0.0.1"),
        ("0:0:0:0:0:ffff:10.0.0.1", "10.0.0.1"),
        ("0:0::1", "::1"),
        ("FE80::1", "fe80::1"),
        ("::10.0.0.1", "::a00:1"),  # another one
        ("broker.example", "broker.example"),
        ("a:b", "a:b"),
        ("", ""),
        ("*", "*"),
    ],
)
def test_an_address_has_one_form(text: str, plain: str) -> None:
    assert plain_address(text) == plain
    assert plain_address(plain) == plain


@pytest.mark.parametrize("text", ["", "broker.example", "10.0.0", "10.0.0.01", "10.0.0.1:80", "[::1]"])
def test_what_is_no_address_is_not_read(text: str) -> None:
    with pytest.raises(ValueError, match="address"):
        read_address(text)


def test_this_machine_is_known_by_its_addresses() -> None:
    here = ("127.0.0.1", "127.9.9.9", "::1", "localhost", "LOCALHOST", "::ffff:127.0.0.1")
    assert [one for one in here if not is_loopback(one)] == []
    elsewhere = ("localhost.example", "10.0.0.1", "0.0.0.0", "::", "127.0.0.1.nip.io", "::ffff:10.0.0.1", "")
    assert [one for one in elsewhere if is_loopback(one)] == []
