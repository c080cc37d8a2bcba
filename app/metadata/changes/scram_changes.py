"""Users of SCRAM in the cluster log (KIP-554): added, changed and removed. Pure.

A password never comes here. A client sends it salted, and the stored keys cannot be used to log in.

Tests: ``tests/broker/test_secured_listeners.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from app.core.errors import ErrorCode, RequestRejected
from app.core.turns import STRIDE, Steps, Stepwise
from app.metadata.changes.topic_changes import Planned
from app.metadata.image.draft import ImageDraft
from app.metadata.image.records import LEVEL_FEATURE, SECURITY_LEVEL, scram_change, scram_secret_change
from app.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, ScramCredential, ScramMechanism, credential_of

NAME_CHARS_MAX: Final = 255
USERS_MAX: Final = 10_000
"""The image has all of them."""


class ScramAsked(NamedTuple):
    """One credential to add or change, or to remove."""

    user: str
    mechanism: int
    removes: bool
    iterations: int = 0
    salt: bytes = b""
    salted_password: bytes = b""
    credential: ScramCredential | None = None
    """In place of the three above."""

    def __repr__(self) -> str:
        return f"ScramAsked({self.user!r}, {self.mechanism})"


class ScramAnswer(NamedTuple):
    """The result for one user."""

    user: str
    code: ErrorCode = ErrorCode.NONE
    sentence: str | None = None


@Stepwise
def alter_scram_users(
    draft: ImageDraft, asked: Sequence[ScramAsked], secret: bytes
) -> Steps[Planned[Sequence[ScramAnswer]]]:
    """Add, change and remove SCRAM credentials: for each user all that is asked, or nothing. The refusals are in the result.

    ``secret``: random bytes that cannot be guessed, kept if the cluster has none yet. Raises: RequestRejected UNSUPPORTED_VERSION
    below ``SECURITY_LEVEL``.
    """
    if draft.level < SECURITY_LEVEL:
        raise RequestRejected(
            ErrorCode.UNSUPPORTED_VERSION,
            f"Users need {LEVEL_FEATURE}={SECURITY_LEVEL}, and it is {draft.level}. Raise it with `firn cluster features --upgrade "
            f"{LEVEL_FEATURE}={SECURITY_LEVEL}`.",
        )
    by_user: dict[str, list[ScramAsked]] = {}
    for one in asked:
        by_user.setdefault(one.user, []).append(one)
    records, answers = [], []
    count = len(draft.scram_users)
    for user, changes in by_user.items():
        refused = _refusal(draft, user, changes)
        if refused is None and user not in draft.scram_users:
            count += 1
            if count > USERS_MAX:
                refused = ScramAnswer(user, ErrorCode.UNACCEPTABLE_CREDENTIAL, f"There can be {USERS_MAX} users.")
        answers.append(ScramAnswer(user) if refused is None else refused)
        if refused is None:
            records += [scram_change(user, one.mechanism, None if one.removes else _credential(one)) for one in changes]
        if not len(answers) % STRIDE:
            yield
    if records and not draft.scram_secret:
        records.insert(0, scram_secret_change(secret))
    return Planned(records, answers)


def _credential(one: ScramAsked) -> ScramCredential:
    if one.credential is not None:
        return one.credential
    return credential_of(ScramMechanism(one.mechanism), one.salted_password, one.salt, one.iterations)


def _refusal(draft: ImageDraft, user: str, changes: Sequence[ScramAsked]) -> ScramAnswer | None:
    if not user:
        return ScramAnswer(user, ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty.")
    if len(user) > NAME_CHARS_MAX:
        return ScramAnswer(user, ErrorCode.UNACCEPTABLE_CREDENTIAL, f"A name has at most {NAME_CHARS_MAX} characters.")
    if len({one.mechanism for one in changes}) != len(changes):
        return ScramAnswer(
            user, ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request."
        )
    for one in changes:
        if one.mechanism not in ScramMechanism.__members__.values():
            return ScramAnswer(user, ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism.")
        if one.removes:
            if one.mechanism not in draft.scram_users.get(user, {}):
                return ScramAnswer(
                    user,
                    ErrorCode.RESOURCE_NOT_FOUND,
                    "Attempt to delete a user credential that does not exist.",
                )
            continue
        if one.credential is not None:
            continue
        if one.iterations < ITERATIONS_MIN:
            return ScramAnswer(user, ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations.")
        if one.iterations > ITERATIONS_MAX:
            return ScramAnswer(user, ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations.")
        if not one.salt or len(one.salted_password) != ScramMechanism(one.mechanism).key_bytes:
            return ScramAnswer(user, ErrorCode.UNACCEPTABLE_CREDENTIAL, "The salt or the salted password is not valid.")
    return None
