"""Bounds of keys and bytes: half for one principal, the last tenth for small ones."""

from __future__ import annotations

from app.exactly_once.bounds import Amount, Bounds, Usage


def usage_of(bounds: Bounds, **keys: int) -> Usage:
    usage = Usage(bounds)
    for name, count in keys.items():
        usage.change(name, Amount(count, 10 * count))
    return usage


def test_a_principal_gets_half_of_the_keys() -> None:
    bounds = Bounds(10_000, 1 << 40)
    assert usage_of(bounds, a=4_999).refusal("a", 10) is None
    refusal = usage_of(bounds, a=5_000).refusal("a", 10)
    assert refusal == "The caller has 5000 keys, and 5000 are allowed. Try again when older ones have expired."


def test_the_last_tenth_is_for_principals_with_few_keys() -> None:
    bounds = Bounds(10_000, 1 << 40)
    full = usage_of(bounds, a=4_500, b=4_490, c=10)
    assert (
        full.refusal("a", 10)
        == "This broker keeps 9000 keys, and 10000 at most. Try again when older ones have expired."
    )
    assert full.refusal("d", 10) is None
    assert full.refusal("c", 10) is not None, "its eleventh key makes it large"
    full.change("e", Amount(1_000, 0))
    assert full.refusal("d", 10) is not None


def test_bytes_are_bounded_as_keys_are() -> None:
    bounds = Bounds(1 << 40, 100_000)
    assert usage_of(bounds, a=4_900).refusal("a", 700) is None
    refusal = usage_of(bounds, a=4_990).refusal("a", 700)
    assert refusal is not None
    assert "49900 bytes of results" in refusal


def test_what_goes_is_given_back() -> None:
    usage = usage_of(Bounds(), a=3, b=1)
    usage.change("a", Amount(3, 30), -1)
    assert usage.total == Amount(1, 10)
    assert list(usage.by_principal) == ["b"]
