"""Delegation tokens in the cluster log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from app.configs import BrokerConfig
from app.core.errors import CorruptionError, ErrorCode, RequestRejected
from app.core.units import BrokerId, LogSequence, TimestampMs
from app.metadata.changes import token_changes
from app.metadata.changes.token_changes import TokenAsked, create_token, expire_token, renew_token, sweep_tokens
from app.metadata.changes.topic_changes import PlanInputs, Planned
from app.metadata.image.draft import ImageDraft
from app.metadata.image.image import ClusterImage
from app.metadata.image.records import LEVEL_FEATURE, SECURITY_LEVEL, feature_change, token_change
from app.metadata.log.log_format import encode_key
from app.security.delegation import DelegationToken

NOW, DAY = 1_000_000, 86_400_000
CONFIG = BrokerConfig(delegation_token_max_lifetime_ms=7 * DAY, delegation_token_expiry_time_ms=DAY)
TOKEN = DelegationToken("User:alice", "User:bob", ("User:carol",), NOW, NOW + 7 * DAY, NOW + DAY)
ASKED = TokenAsked("User:alice", "User:bob", ("User:carol",), -1)


def around(now_ms: int = NOW) -> PlanInputs:
    return PlanInputs(CONFIG, [BrokerId(1)], TimestampMs(now_ms), 0)


def image(level: int = SECURITY_LEVEL, **tokens: DelegationToken) -> ClusterImage:
    draft = ImageDraft(ClusterImage())
    draft.apply([feature_change(LEVEL_FEATURE, level), *(token_change(one, token) for one, token in tokens.items())])
    return draft.freeze(LogSequence(1))


def after(before: ClusterImage, planned: Planned[Any]) -> ClusterImage:
    draft = ImageDraft(before)
    draft.apply(planned.records)
    return draft.freeze(LogSequence(before.sequence + 1))


def refused(plan: Callable[[], object]) -> ErrorCode:
    with pytest.raises(RequestRejected) as error:
        plan()
    return error.value.code


def test_a_token_is_made_with_the_lifetimes_of_the_broker() -> None:
    before = image()
    made = create_token(ImageDraft(before), around(), "t", ASKED)
    assert made.answer.token == TOKEN
    assert after(before, made).tokens == {"t": TOKEN}
    assert before.tokens == {}, "an image never changes"


@pytest.mark.parametrize(
    ("lifetime_ms", "max_ms", "expires_ms"),
    [(0, 7 * DAY, DAY), (5, 5, 5), (2 * DAY, 2 * DAY, DAY), (1 << 62, 7 * DAY, DAY)],
)
def test_a_lifetime_only_shortens(lifetime_ms: int, max_ms: int, expires_ms: int) -> None:
    made = create_token(ImageDraft(image()), around(), "t", ASKED._replace(lifetime_ms=lifetime_ms)).answer.token
    assert (made.max_ms - NOW, made.expires_ms - NOW) == (max_ms, expires_ms)


def test_times_do_not_overflow() -> None:
    late = PlanInputs(CONFIG, [], TimestampMs((1 << 63) - 5), 0)
    made = create_token(ImageDraft(image()), late, "t", ASKED).answer.token
    assert made.max_ms == made.expires_ms == (1 << 63) - 1


@pytest.mark.parametrize("level", range(SECURITY_LEVEL))
def test_a_lower_level_has_no_tokens(level: int) -> None:
    draft = ImageDraft(image(level))
    for plan in (
        lambda: create_token(draft, around(), "t", ASKED),
        lambda: renew_token(draft, around(), "t", "User:alice", -1),
        lambda: expire_token(draft, around(), "t", "User:alice", -1),
    ):
        assert refused(plan) is ErrorCode.UNSUPPORTED_VERSION


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (ASKED._replace(owner="Group:a"), ErrorCode.INVALID_PRINCIPAL_TYPE),
        (ASKED._replace(owner=":a"), ErrorCode.INVALID_PRINCIPAL_TYPE),
        (ASKED._replace(owner="User:"), ErrorCode.INVALID_REQUEST),
        (ASKED._replace(renewers=("Group:a",)), ErrorCode.INVALID_PRINCIPAL_TYPE),
        (ASKED._replace(renewers=tuple(f"User:{n}" for n in range(101))), ErrorCode.INVALID_REQUEST),
        (ASKED._replace(owner="User:" + "x" * 2000), ErrorCode.INVALID_REQUEST),
    ],
)
def test_what_cannot_be_an_owner_or_renewer_is_refused(asked: TokenAsked, code: ErrorCode) -> None:
    assert refused(lambda: create_token(ImageDraft(image()), around(), "t", asked)) is code


def test_the_names_of_renewers_are_bounded_together() -> None:
    names = tuple(f"User:{number}{'x' * 900}" for number in range(9))
    assert create_token(ImageDraft(image()), around(), "t", ASKED._replace(renewers=names)).records
    more = ASKED._replace(renewers=(*names, "User:" + "y" * 60))
    assert sum(map(len, more.renewers)) > token_changes.RENEWERS_CHARS_MAX
    assert refused(lambda: create_token(ImageDraft(image()), around(), "t", more)) is ErrorCode.INVALID_REQUEST


def test_there_are_so_many_tokens_at_most(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_changes, "TOKENS_MAX", 1)
    assert refused(lambda: create_token(ImageDraft(image(a=TOKEN)), around(), "t", ASKED)) is ErrorCode.POLICY_VIOLATION


def test_renewing_moves_the_end_and_never_past_the_greatest_end() -> None:
    before = image(t=TOKEN)
    later = around(NOW + DAY - 5)
    assert renew_token(ImageDraft(before), later, "t", "User:carol", -1).answer == NOW + 2 * DAY - 5
    assert renew_token(ImageDraft(before), later, "t", "User:alice", 10).answer == NOW + DAY + 5
    assert renew_token(ImageDraft(before), later, "t", "User:alice", 5 * DAY).answer == NOW + 2 * DAY - 5
    last = image(t=TOKEN._replace(expires_ms=TOKEN.max_ms))
    planned = renew_token(ImageDraft(last), around(TOKEN.max_ms - 5), "t", "User:alice", -1)
    assert planned.answer == TOKEN.max_ms
    assert after(last, planned).tokens["t"].max_ms == TOKEN.max_ms


def test_expiring_moves_the_end_or_removes_the_token() -> None:
    before = image(t=TOKEN)
    planned = expire_token(ImageDraft(before), around(), "t", "User:alice", 10)
    assert (planned.answer, after(before, planned).tokens["t"].expires_ms) == (NOW + 10, NOW + 10)
    assert expire_token(ImageDraft(before), around(), "t", "User:alice", 1 << 62).answer == TOKEN.max_ms
    gone = expire_token(ImageDraft(before), around(), "t", "User:carol", -1)
    assert (gone.answer, after(before, gone).tokens) == (NOW, {})


def test_a_token_that_has_ended_can_only_be_removed() -> None:
    draft, late = ImageDraft(image(t=TOKEN)), around(TOKEN.expires_ms + 1)
    assert refused(lambda: renew_token(draft, late, "t", "User:alice", -1)) is ErrorCode.DELEGATION_TOKEN_EXPIRED
    assert refused(lambda: expire_token(draft, late, "t", "User:alice", 1)) is ErrorCode.DELEGATION_TOKEN_EXPIRED
    assert expire_token(draft, late, "t", "User:alice", -1).records


@pytest.mark.parametrize("principal", ["User:bob", "User:mallory", "alice"])
def test_nobody_else_renews_or_expires(principal: str) -> None:
    draft = ImageDraft(image(t=TOKEN))
    for plan in (
        lambda: renew_token(draft, around(), "t", principal, -1),
        lambda: expire_token(draft, around(), "t", principal, -1),
    ):
        assert refused(plan) is ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH
    for absent in (None, "other"):
        found = refused(lambda absent=absent: renew_token(draft, around(), absent, principal, -1))  # type: ignore[misc]
        assert found is ErrorCode.DELEGATION_TOKEN_NOT_FOUND


def test_a_sweep_removes_what_has_ended_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(token_changes, "SWEPT_AT_ONCE_MAX", 2)
    old = TOKEN._replace(expires_ms=NOW - 1)
    before = image(a=old, b=TOKEN, c=old, d=TOKEN._replace(max_ms=NOW - 1))
    first = sweep_tokens(ImageDraft(before), around())
    left = after(before, first)
    second = sweep_tokens(ImageDraft(left), around())
    assert (len(first.answer), len(second.answer)) == (2, 1)
    assert after(left, second).tokens == {"b": TOKEN}
    assert not sweep_tokens(ImageDraft(image(b=TOKEN)), around()).records


def test_the_bytes_of_a_record() -> None:
    key, value = token_change("t", DelegationToken("User:a", "User:b", ("User:c",), 1, 2, 3))
    assert key.hex() == "921da174"
    assert value is not None
    assert value.hex() == "9701a6557365723a61a6557365723a6291a6557365723a63010203"
    with pytest.raises(CorruptionError):
        ImageDraft(ClusterImage()).apply([(encode_key(29, 5), value)])
