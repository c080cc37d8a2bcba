"""How long a client tries again, on a virtual clock."""

from __future__ import annotations

import random

import pytest

from app.client.retry import retrying
from app.core.errors import ErrorCode, RequestRejected
from tests.support.virtual_loop import VirtualLoop, run_virtual

BUDGET_MS = 10_000


def tried_for_s(code: ErrorCode, shorter_ms: dict[ErrorCode, int]) -> float:
    """How long a request is tried that is refused with this code for ever."""

    async def main(loop: VirtualLoop) -> float:
        async def refused() -> None:
            raise RequestRejected(code)

        with pytest.raises(RequestRejected):
            await retrying(refused, rng=random.Random(1), budget_ms=BUDGET_MS, shorter_ms=shorter_ms)
        return loop.time()

    return run_virtual(main)


def test_a_code_with_a_smaller_budget_is_tried_for_less_time_and_the_others_are_not() -> None:
    shorter = {ErrorCode.CONCURRENT_TRANSACTIONS: 500}
    assert 0.25 < tried_for_s(ErrorCode.CONCURRENT_TRANSACTIONS, shorter) < 0.5
    assert 8.5 < tried_for_s(ErrorCode.NOT_COORDINATOR, shorter) < 10.0
    assert 8.5 < tried_for_s(ErrorCode.CONCURRENT_TRANSACTIONS, {}) < 10.0


def test_a_refusal_for_good_is_not_tried_again() -> None:
    assert tried_for_s(ErrorCode.TOPIC_AUTHORIZATION_FAILED, {ErrorCode.TOPIC_AUTHORIZATION_FAILED: 500}) == 0.0
