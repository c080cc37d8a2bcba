"""Changes of access control lists (KIP-140, KIP-290, ADR 0030). Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from app.core.errors import ErrorCode, RequestRejected
from app.core.limits import ACLS_MAX
from app.metadata.changes.topic_changes import Planned
from app.metadata.image.draft import ImageDraft
from app.metadata.image.records import LEVEL_FEATURE, SECURITY_LEVEL, acl_change
from app.security.acls import Acl, AclFilter, why_invalid

ACLS_PER_CHANGE_MAX: Final = 10_000
"""Records of one request, as Kafka allows."""


def create_acls(draft: ImageDraft, asked: Sequence[Acl]) -> Planned[list[RequestRejected | None]]:
    """Add ACLs. Result: for each, why it cannot be made, or None. One that is there already stays, and is no mistake.

    Raises: RequestRejected UNSUPPORTED_VERSION below level 2; INVALID_REQUEST, POLICY_VIOLATION for too many at once or in all.
    """
    check_level(draft)
    refusals: list[RequestRejected | None] = []
    new: dict[Acl, None] = {}
    for acl in asked:
        why = why_invalid(acl)
        if why is not None:
            refusals.append(RequestRejected(ErrorCode.INVALID_REQUEST, why))
            continue
        refusals.append(None)
        if acl.rule not in draft.acls.get(acl.pattern, {}).get(acl.rule.principal, ()):
            new[acl] = None
    _check_size(len(new))
    if draft.acl_count + len(new) > ACLS_MAX:
        raise RequestRejected(
            ErrorCode.POLICY_VIOLATION,
            f"There are {draft.acl_count} ACLs, and a cluster has {ACLS_MAX} at most. Use prefixed patterns, or delete ACLs.",
        )
    return Planned([acl_change(acl, exists=True) for acl in new], refusals)


def delete_acls(draft: ImageDraft, asked: Sequence[AclFilter]) -> Planned[list[list[Acl] | RequestRejected]]:
    """Delete the ACLs that filters match. Result: for each filter the ACLs that it matched, or why it is invalid.

    Raises: RequestRejected INVALID_REQUEST for too many at once.
    """
    answers: list[list[Acl] | RequestRejected] = []
    gone: dict[Acl, None] = {}
    for one in asked:
        why = one.why_unknown()
        if why is not None:
            answers.append(RequestRejected(ErrorCode.INVALID_REQUEST, why))
            continue
        found = list(one.find(draft.acls))
        gone.update(dict.fromkeys(found))
        answers.append(found)
    _check_size(len(gone))
    return Planned([acl_change(acl, exists=False) for acl in gone], answers)


def check_level(draft: ImageDraft) -> None:
    """Raises: RequestRejected UNSUPPORTED_VERSION if the level does not allow access control."""
    if draft.level < SECURITY_LEVEL:
        raise RequestRejected(
            ErrorCode.UNSUPPORTED_VERSION,
            f"ACLs need {LEVEL_FEATURE} {SECURITY_LEVEL}, and it is {draft.level}: run "
            f"`firn cluster features --upgrade {LEVEL_FEATURE}={SECURITY_LEVEL}`.",
        )


def _check_size(count: int) -> None:
    if count > ACLS_PER_CHANGE_MAX:
        raise RequestRejected(
            ErrorCode.INVALID_REQUEST, f"One request changes {ACLS_PER_CHANGE_MAX} ACLs at most, not {count}."
        )
