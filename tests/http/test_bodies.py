"""A small body is decoded at once, so the arrays and objects in it are counted before."""

from __future__ import annotations

import json
import random

import httpx
import pytest

from app.core.turns import whole
from app.http import bodies
from app.http.bodies import containers_steps


def containers(value: object) -> int:
    if isinstance(value, dict):
        return 1 + sum(containers(one) for one in value.values())
    return 1 + sum(containers(one) for one in value) if isinstance(value, list) else 0


def value_of(rng: random.Random, depth: int) -> object:
    kind = rng.randrange(4 if depth else 2)
    if kind == 2:
        return [value_of(rng, depth - 1) for _ in range(rng.randrange(4))]
    if kind == 3:
        return {text_of(rng): value_of(rng, depth - 1) for _ in range(rng.randrange(4))}
    return text_of(rng) if kind else rng.randrange(100)


def text_of(rng: random.Random) -> str:
    return "".join(rng.choices('a"[{\\]', k=rng.randrange(6)))


@pytest.mark.parametrize("at_once", [1, 7, 32 * 1024])
def test_arrays_and_objects_are_counted_and_brackets_in_strings_are_not(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "COUNTED_AT_ONCE", at_once)
    for seed in range(300):
        value = [value_of(random.Random(seed), 4)]
        assert whole(containers_steps(bytearray(json.dumps(value).encode()))) == containers(value), value


def test_a_count_ends_soon_after_it_is_too_high() -> None:
    assert sum(1 for _ in containers_steps(bytearray(b"[" * 1_000_000))) == 2


def lists(count: int) -> bytes:
    return b'{"topic_name":"t","replicas_assignments":{' + b",".join([b'"0":[1]'] * (count - 2)) + b"}}"


async def test_a_body_of_too_many_lists_is_refused_before_it_is_decoded(http: httpx.AsyncClient, cluster: str) -> None:
    most = await http.post(f"{cluster}/topics", content=lists(bodies.CONTAINERS_MAX))
    assert most.status_code == 201
    for body in (lists(bodies.CONTAINERS_MAX + 1), lists(bodies.CONTAINERS_MAX + 1) + b" and no JSON"):
        refused = await http.post(f"{cluster}/topics", content=body)
        assert refused.status_code == 422
        assert refused.json()["message"] == "The body has more than 32768 arrays and objects. Send a smaller one."
