"""Tables of ACLs."""

from __future__ import annotations

from collections.abc import Iterable

from hypothesis import strategies as st

from app.security.acls import (
    EVERYBODY,
    WILDCARD,
    Acl,
    Acls,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
    Rule,
)

ALICE, BOB, ROOT = "User:alice", "User:bob", "User:root"
HERE, THERE = "10.0.0.1", "10.0.0.2"
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER
LITERAL, PREFIXED = PatternType.LITERAL, PatternType.PREFIXED
ALLOW, DENY = Permission.ALLOW, Permission.DENY


def table(acls: Iterable[Acl]) -> Acls:
    found: dict[Pattern, dict[str, tuple[Rule, ...]]] = {}
    for pattern, rule in acls:
        of_pattern = found.setdefault(pattern, {})
        of_pattern[rule.principal] = (*of_pattern.get(rule.principal, ()), rule)
    return found


def acl(
    operation: int,
    name: str = "t",
    *,
    kind: int = TOPIC,
    pattern: int = LITERAL,
    principal: str = ALICE,
    host: str = WILDCARD,
    permission: int = ALLOW,
) -> Acl:
    return Acl(Pattern(kind, pattern, name), Rule(principal, host, operation, permission))


kinds = st.sampled_from([TOPIC, GROUP])
names = st.text("ab*", min_size=1, max_size=3)
operations = st.sampled_from([one for one in Operation if one >= Operation.READ])
rules = st.builds(
    Rule,
    st.sampled_from([ALICE, BOB, ROOT, EVERYBODY, "Group:alice"]),
    st.sampled_from([HERE, THERE, WILDCARD]),
    st.one_of(st.just(Operation.ALL), operations),
    st.sampled_from([ALLOW, DENY]),
)
acls = st.lists(
    st.builds(Acl, st.builds(Pattern, kinds, st.sampled_from([LITERAL, PREFIXED]), names), rules), max_size=12
)
