"""Who a request comes from, by what proxies say: only the entries that trusted proxies have added count (ADR 0034, HF)."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.core.addresses import Networks, parse_networks
from app.http.forwarded import FORWARDED, HOPS_MAX, client_address

PROXIES = Networks(parse_networks("10.0.0.0/24, 2001:db8:1::/48, 127.0.0.1"))
PROXY = "10.0.0.1"
CLIENT = "192.0.2.7"
X_FORWARDED_FOR = "x-forwarded-for"


def seen(*lines: str, header: str = X_FORWARDED_FOR, sent: str = "", peer: str = PROXY) -> str:
    """Who a request comes from with these lines of ``sent``, or else of the header that counts."""
    name = (sent or header).encode()
    return client_address(peer, [(b"host", b"x"), *((name, line.encode()) for line in lines)], PROXIES, header)


@pytest.mark.parametrize(
    ("lines", "address"),
    [
        ((), PROXY),
        ((CLIENT,), CLIENT),
        (("198.51.100.1, " + CLIENT,), CLIENT),
        (("198.51.100.1", CLIENT), CLIENT),
        ((f"198.51.100.1, {CLIENT}, 10.0.0.2,10.0.0.3",), CLIENT),
        (("10.0.0.4, 10.0.0.5",), "10.0.0.4"),
        ((f"{CLIENT}:4711",), CLIENT),
        (("[2001:DB8:0::7]:4711",), "2001:db8::7"),
        (("2001:db8:0::7, 2001:db8:1::1",), "2001:db8::7"),
        (("::ffff:192.0.2.7",), CLIENT),
        ((f"{CLIENT}, unknown",), PROXY),
        ((f"{CLIENT}, unknown, 10.0.0.9",), "10.0.0.9"),
        ((f"{CLIENT}, ",), PROXY),
        ((f'"{CLIENT}"',), PROXY),
        (("192.0.2.300",), PROXY),
        (("192.0.2.7%eth0",), PROXY),
        (("1" * 10_000,), PROXY),
        ((", ".join([CLIENT, *["10.0.0.2"] * HOPS_MAX]),), "10.0.0.2"),
    ],
)
def test_addresses_are_read_from_the_right_end_as_far_as_proxies_are_trusted(
    lines: tuple[str, ...], address: str
) -> None:
    assert seen(*lines) == address


@pytest.mark.parametrize(
    ("lines", "address"),
    [
        ((f"for={CLIENT}",), CLIENT),
        ((f"proto=https;For={CLIENT};by=10.0.0.1",), CLIENT),
        ((f'for=198.51.100.1, for="{CLIENT}:80" ; proto=http, for=10.0.0.3',), CLIENT),
        (('for="[2001:db8::7]:80"',), "2001:db8::7"),
        ((f'for="198.51.100.1, for={CLIENT}',), PROXY),
        ((f'for="198.51.100.1, for={CLIENT};host=",for=198.51.100.9;x="',), PROXY),
        ((f'for={CLIENT};host="a,for=198.51.100.9"',), CLIENT),
        ((f"for={CLIENT};for=198.51.100.9",), PROXY),
        ((f"for={CLIENT}, for=_hidden",), PROXY),
        ((f"for={CLIENT}, proto=https",), PROXY),
        (('for="x', f"for={CLIENT}"), CLIENT),
        ((CLIENT,), PROXY),
    ],
)
def test_the_header_of_rfc_7239_is_read_the_same_way(lines: tuple[str, ...], address: str) -> None:
    assert seen(*lines, header=FORWARDED) == address


@pytest.mark.parametrize("peer", ["192.0.2.1", "10.0.1.1", "::1", "::ffff:192.0.2.1", "", "local"])
def test_nobody_else_is_believed(peer: str) -> None:
    told = seen("198.51.100.1", peer=peer)
    assert told == ("192.0.2.1" if peer.startswith("::ffff") else peer)


def test_a_proxy_is_known_in_each_form_of_its_address() -> None:
    assert seen(CLIENT, peer="::ffff:10.0.0.1") == CLIENT


def test_one_header_counts_whatever_the_other_says() -> None:
    assert seen("198.51.100.1", sent=FORWARDED) == PROXY
    assert seen("for=198.51.100.1", header=FORWARDED, sent=X_FORWARDED_FOR) == PROXY


ANY_TEXT = st.text(st.characters(max_codepoint=255, exclude_characters="\r\n"))
NEAR_TEXT = st.text(st.sampled_from('for=":;,[]\\ 1.x'))


@given(ANY_TEXT | NEAR_TEXT, st.booleans())
@example(f"198.51.100.1, {PROXY}", True)
@example('for="', True)
@example('for="\\', True)
def test_nothing_that_a_client_writes_makes_it_somebody_else(written: str, same_line: bool) -> None:
    for header, added in ((X_FORWARDED_FOR, CLIENT), (FORWARDED, f"for={CLIENT}")):
        entry = added.encode()
        text = written.encode("latin-1")
        lines = [text + b", " + entry] if same_line else [text, entry]
        found = client_address(PROXY, [(header.encode(), line) for line in lines], PROXIES, header)
        assert found == CLIENT or (header == FORWARDED and same_line and found == PROXY)


@given(ANY_TEXT)
def test_a_host_that_a_proxy_repeats_in_quotes_names_nobody(host: str) -> None:
    quoted = host.replace("\\", "\\\\").replace('"', '\\"')
    line = f'for={CLIENT};host="{quoted}"'
    found = client_address(PROXY, [(b"forwarded", line.encode("latin-1"))], PROXIES, FORWARDED)
    assert found in (CLIENT, PROXY)


@pytest.mark.parametrize(
    ("text", "entries"),
    [
        ("", ()),
        (" 10.0.0.7 ,10.1.0.0/16", ("10.0.0.7", "10.1.0.0/16")),
        ("2001:DB8::/32, ::ffff:10.0.0.7", ("2001:db8::/32", "10.0.0.7")),
    ],
)
def test_networks_are_read(text: str, entries: tuple[str, ...]) -> None:
    assert parse_networks(text) == entries


@pytest.mark.parametrize("text", ["0.0.0.0/0", "10.0.0.1,::/0", "proxy.example", "10.0.0.1/24", "10.0.0.0/33", "*"])
def test_what_is_no_network_or_is_everybody_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not an address or a network|everybody would be in it"):
        parse_networks(text)
