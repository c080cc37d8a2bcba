"""The authorizer against a plain reading of Kafka's rules: every rule is looked at for every question."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from ipaddress import ip_address
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.core.addresses import plain_address
from app.core.limits import ACLS_MAX
from app.security.acls import (
    CLUSTER_NAME,
    EVERYBODY,
    OPERATIONS,
    WILDCARD,
    Acl,
    AclFilter,
    Operation,
    Pattern,
    PatternType,
    Permission,
    ResourceType,
    why_invalid,
)
from app.security.authorizer import DECISIONS_BYTES_MAX, PREFIX_CHARS_MAX, Authorizer, split_super_users
from tests.support.acls import (
    ALICE,
    ALLOW,
    BOB,
    CLUSTER,
    DENY,
    GROUP,
    HERE,
    LITERAL,
    PREFIXED,
    ROOT,
    THERE,
    TOPIC,
    acl,
    acls,
    kinds,
    names,
    operations,
    table,
)
from tests.support.cpu import TURN_MS_MAX, cpu_ms


def authorizer(*acls: Acl, everyone: bool = False) -> Authorizer:
    made = Authorizer(frozenset({ROOT}), allow_everyone_if_no_acl_found=everyone)
    assert made.follow(table(acls))
    return made


# --- the model ------------------------------------------------------------------------------------------------------


def is_about(one: Acl, principal: str, host: str, kind: int, name: str) -> bool:
    return matches(one, kind, name) and one.rule.principal in (principal, EVERYBODY) and one.rule.host in (host, "*")


def matches(one: Acl, kind: int, name: str) -> bool:
    if one.pattern.resource_type != kind:
        return False
    if one.pattern.pattern_type == PREFIXED:
        return name.startswith(one.pattern.name)
    return one.pattern.name in (name, "*")


IMPLIED = {
    Operation.DESCRIBE: {Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER},
    Operation.DESCRIBE_CONFIGS: {Operation.ALTER_CONFIGS},
}


def expected(
    acls: list[Acl], principal: str, host: str, operation: Operation, kind: int, name: str, everyone: bool
) -> bool:
    if principal == ROOT:
        return True
    mine = [one.rule for one in acls if is_about(one, principal, host, kind, name)]
    if any(one.permission == DENY and one.operation in (operation, Operation.ALL) for one in mine):
        return False
    implying = {operation, Operation.ALL} | IMPLIED.get(operation, set())
    if any(one.permission == ALLOW and one.operation in implying for one in mine):
        return True
    return everyone and not any(matches(one, kind, name) for one in acls)


questions = st.lists(
    st.tuples(st.sampled_from([ALICE, BOB, ROOT]), st.sampled_from([HERE, THERE]), operations, kinds, names),
    max_size=12,
)


@given(acls, questions, st.booleans())
def test_it_decides_as_a_look_at_every_rule_does(acls: list[Acl], questions: list[tuple], everyone: bool) -> None:
    made = authorizer(*acls, everyone=everyone)
    for question in questions * 2:  # the second time from what is kept
        assert made.allows(*question) is expected(acls, *question, everyone=everyone)


@given(acls, acls, questions)
def test_nothing_that_was_decided_outlives_the_rules(
    before: list[Acl], after: list[Acl], questions: list[tuple]
) -> None:
    made = authorizer(*before)
    for question in questions:
        made.allows(*question)
    assert made.follow(table(after))
    for question in questions:
        assert made.allows(*question) is expected(after, *question, everyone=False)


def expected_of_any(
    acls: list[Acl], principal: str, host: str, operation: Operation, kind: int, everyone: bool
) -> bool:
    """Kafka's ``Authorizer.authorizeByResourceType``: no implied operations; what is denied is denied by a pattern that covers
    what is allowed, and a denied wildcard denies all."""
    if expected(acls, principal, host, operation, kind, "hardcode", everyone):
        return True
    mine = [
        one
        for one in acls
        if one.pattern.resource_type == kind
        and one.rule.principal in (principal, EVERYBODY)
        and one.rule.host in (host, "*")
        and one.rule.operation in (operation, Operation.ALL)
    ]
    denied = [one.pattern for one in mine if one.rule.permission == DENY]
    allowed = [one.pattern for one in mine if one.rule.permission == ALLOW]
    if any(pattern == (kind, LITERAL, "*") for pattern in denied):
        return False

    def is_covered(pattern: Pattern) -> bool:
        if pattern == (kind, LITERAL, "*"):
            return False
        return any(
            pattern.name.startswith(other.name) if other.pattern_type == PREFIXED else other == pattern
            for other in denied
        )

    return not all(is_covered(pattern) for pattern in allowed)


@given(acls, st.sampled_from([ALICE, BOB, ROOT]), st.sampled_from([HERE, THERE]), kinds, operations, st.booleans())
def test_it_decides_about_any_resource_as_kafka_does(acls, principal, host, kind, operation, everyone) -> None:
    made = authorizer(*acls, everyone=everyone)
    for _ in range(2):
        found = made.allows_any(principal, host, operation, kind)
        assert found is expected_of_any(acls, principal, host, operation, kind, everyone)


# --- single rules ---------------------------------------------------------------------------------------------------


def test_nobody_may_do_anything_without_a_rule_but_superusers() -> None:
    made = authorizer()
    assert not made.allows(ALICE, HERE, Operation.READ, TOPIC, "t")
    assert made.allows(ROOT, HERE, Operation.READ, TOPIC, "t")
    assert authorizer(everyone=True).allows(ALICE, HERE, Operation.READ, TOPIC, "t")


def test_a_rule_for_somebody_else_ends_the_right_of_everyone() -> None:
    made = authorizer(acl(Operation.READ, principal=BOB), everyone=True)
    assert not made.allows(ALICE, HERE, Operation.READ, TOPIC, "t")
    assert made.allows(ALICE, HERE, Operation.READ, TOPIC, "u")


def test_denial_beats_what_is_allowed_by_a_narrower_pattern() -> None:
    made = authorizer(
        acl(Operation.READ, "orders"), acl(Operation.ALL, "ord", pattern=PREFIXED, permission=DENY, principal=EVERYBODY)
    )
    assert not made.allows(ALICE, HERE, Operation.READ, TOPIC, "orders")
    assert made.allows(ROOT, HERE, Operation.READ, TOPIC, "orders"), "superusers are denied nothing"


@pytest.mark.parametrize("implying", [Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER])
def test_describe_is_implied_where_it_is_allowed_and_not_where_it_is_denied(implying: Operation) -> None:
    assert authorizer(acl(implying)).allows(ALICE, HERE, Operation.DESCRIBE, TOPIC, "t")
    denied = authorizer(acl(Operation.DESCRIBE), acl(implying, permission=DENY))
    assert denied.allows(ALICE, HERE, Operation.DESCRIBE, TOPIC, "t")


def test_an_address_of_ipv6_is_one_in_each_of_its_forms() -> None:
    made = authorizer(acl(Operation.READ, host="0:0:0:0:0:0:0:1"))
    assert made.allows(ALICE, "::1", Operation.READ, TOPIC, "t")
    assert not made.allows(ALICE, "::2", Operation.READ, TOPIC, "t")


@pytest.mark.parametrize("permission", [ALLOW, DENY])
@pytest.mark.parametrize("of_rule", ["10.0.0.1", "::ffff:10.0.0.1", "0:0:0:0:0:ffff:a00:1"])
@pytest.mark.parametrize("host", ["10.0.0.1", "::ffff:10.0.0.1"])
def test_an_address_of_ipv4_is_one_inside_of_ipv6_too(of_rule: str, host: str, permission: Permission) -> None:
    rules = [acl(Operation.READ, host=of_rule, permission=permission)]
    if permission is DENY:
        rules.append(acl(Operation.READ))
    made = authorizer(*rules)
    assert made.allows(ALICE, host, Operation.READ, TOPIC, "t") is (permission is ALLOW)
    assert made.allows(ALICE, "10.0.0.2", Operation.READ, TOPIC, "t") is (permission is DENY)


@given(st.ip_addresses(v=6) | st.sampled_from([ip_address(one) for one in ("::", "::1", "fd00::", "::ffff:10.0.0.1")]))
def test_every_form_of_an_address_is_for_the_same_host(address: Any) -> None:
    for form in (
        str(address),
        address.exploded,
        str(address).upper(),
        address.exploded.replace(":0", ":"),
        "0:" + str(address),
    ):
        try:
            same = plain_address(form) == plain_address(str(address)) and ip_address(form) is not None
        except ValueError:
            continue
        made = authorizer(acl(Operation.READ, host=form))
        assert made.allows(ALICE, plain_address(str(address)), Operation.READ, TOPIC, "t") is same


def test_the_operations_of_a_resource_are_bits() -> None:
    made = authorizer(acl(Operation.READ), acl(Operation.ALTER_CONFIGS))
    allowed = [Operation.READ, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS]
    assert made.operations(ALICE, HERE, TOPIC, "t") == sum(1 << one for one in allowed)
    assert made.operations(ROOT, HERE, CLUSTER, CLUSTER_NAME) == sum(1 << one for one in OPERATIONS[CLUSTER])


def test_decisions_that_are_kept_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    assert DECISIONS_BYTES_MAX > 50_000
    monkeypatch.setattr("app.security.authorizer.DECISIONS_BYTES_MAX", 50_000)
    made = authorizer(acl(Operation.READ, "a", pattern=PREFIXED))
    most = 0
    for number in range(1000):
        assert made.allows(ALICE, HERE, Operation.READ, TOPIC, f"a{number}")
        assert not made.allows(f"User:{number}" * 10, HERE, Operation.READ, TOPIC, "a")
        most = max(most, made.memory_bytes)
    assert 40_000 < most <= 50_000


def test_decisions_take_no_more_than_is_counted() -> None:
    for size in (4, 100, 250):
        made = authorizer()
        names = [f"{number:0{size}}" for number in range(5_000)]
        tracemalloc.start()
        for name in names:
            made.allows(ALICE, HERE, Operation.READ, TOPIC, name[:1] + name[1:])
        taken, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert taken <= made.memory_bytes <= 2 * taken, size


def test_no_name_that_is_longer_than_any_topics_is_kept() -> None:
    made = authorizer(acl(Operation.READ, "a", pattern=PREFIXED))
    made.allows(ALICE, HERE, Operation.READ, TOPIC, "a")
    before = made.memory_bytes
    for number in range(100):
        assert made.allows(ALICE, HERE, Operation.READ, TOPIC, f"a{number}" + "x" * 255)
    assert made.memory_bytes == before


def many_rules(count: int, name: Callable[[int], str], **rule: Any) -> list[Acl]:
    return [acl(Operation.READ, name(number), **rule) for number in range(count)]


LONG = "x" * 32_767
HOSTILE: dict[str, Callable[[], list[Acl]]] = {
    "no rules": list,
    "short prefixes": lambda: many_rules(5000, lambda number: f"team{number}.", pattern=PREFIXED),
    "every length of a topic": lambda: many_rules(249, lambda number: "x" * (number + 1), pattern=PREFIXED),
    "5,000 lengths, one in another": lambda: many_rules(5000, lambda number: "x" * (number * 6 + 1), pattern=PREFIXED),
    "5,000 lengths for others": lambda: many_rules(
        5000, lambda number: "x" * (number * 6 + 1), pattern=PREFIXED, principal=BOB
    ),
    "denied": lambda: many_rules(5000, lambda number: "x" * (number * 6 + 1), pattern=PREFIXED, permission=DENY),
    "allowed by literals and denied by prefixes": lambda: [
        *many_rules(2500, lambda number: "x" * (number * 6 + 1) + "y"),
        *many_rules(2500, lambda number: "x" * (number * 6 + 2), pattern=PREFIXED, permission=DENY),
    ],
    "from many hosts": lambda: [acl(Operation.READ, "x", host=f"fd00::{number:x}:0") for number in range(5000)],
    "of many users": lambda: [acl(Operation.READ, "x", principal=f"User:{number}") for number in range(5000)],
}
"""5,000 rules each, in the shapes that cost the most."""


@pytest.mark.parametrize("rules", HOSTILE.values(), ids=HOSTILE.keys())
def test_no_name_and_no_rules_make_one_decision_long(rules: Callable[[], list[Acl]]) -> None:
    made = authorizer(*rules())
    for name in (LONG, LONG[:-1] + "y", "y" * 32_767, "x" * 249, "é" * 16_000):

        def first(name: str = name) -> None:
            made.follow(dict(made.acls))  # nothing is known of the rules
            made.allows(ALICE, "fd00::1", Operation.READ, TOPIC, name)

        assert cpu_ms(first) < TURN_MS_MAX

        def again(name: str = name) -> None:
            for _ in range(30):
                made.allows(ALICE, "fd00::1", Operation.READ, TOPIC, name)

        assert cpu_ms(again) < TURN_MS_MAX / 2
    assert cpu_ms(lambda: made.allows_any(ALICE, "fd00::1", Operation.READ, TOPIC), rounds=1) < TURN_MS_MAX


def test_the_rules_of_a_whole_cluster_are_looked_at_within_one_turn() -> None:
    acls = [acl(Operation.READ, f"topic-{number}", principal=f"User:{number % 100}") for number in range(ACLS_MAX)]
    made = authorizer(*acls)
    asked = [
        lambda: made.allows(ALICE, HERE, Operation.READ, TOPIC, "topic-1"),
        lambda: made.judge(ALICE, HERE, Operation.READ, TOPIC)("topic-1"),
        lambda: made.allows_any(ALICE, HERE, Operation.READ, TOPIC),
    ]
    for one in asked:
        assert made.follow(dict(made.acls))
        assert cpu_ms(one, rounds=1) < TURN_MS_MAX


@given(acls, questions, st.booleans())
def test_a_judge_of_many_names_decides_the_same(acls: list[Acl], questions: list[tuple], everyone: bool) -> None:
    made = authorizer(*acls, everyone=everyone)
    for question in questions * 2:
        *who, name = question
        assert made.judge(*who)(name) is expected(acls, *question, everyone=everyone)


@given(acls, questions, st.booleans())
def test_it_decides_the_same_where_prefixes_have_too_many_lengths(
    acls: list[Acl], questions: list[tuple], everyone: bool
) -> None:
    more = [
        acl(Operation.READ, "c" * length, kind=kind, pattern=PREFIXED)
        for length in range(1, 257)
        for kind in (TOPIC, GROUP)
    ]
    assert sum(range(1, 257)) > PREFIX_CHARS_MAX
    made = authorizer(*acls, *more, everyone=everyone)
    for question in questions * 2:
        assert made.allows(*question) is expected(acls, *question, everyone=everyone)


def test_judges_do_not_outlive_the_rules_and_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    made = authorizer(acl(Operation.READ, "a"))
    assert made.judge(ALICE, HERE, Operation.READ, TOPIC)("a")
    assert made.judge(ALICE, HERE, Operation.READ, TOPIC) is made.judge(ALICE, HERE, Operation.READ, TOPIC)
    assert made.follow(table([acl(Operation.READ, "b")]))
    assert not made.judge(ALICE, HERE, Operation.READ, TOPIC)("a")
    assert made.judge(ROOT, HERE, Operation.READ, TOPIC)("a")
    monkeypatch.setattr("app.security.authorizer.JUDGED_NAMES_MAX", 100)
    made.follow(table([acl(Operation.READ, f"t{number}", principal=EVERYBODY) for number in range(30)]))
    for number in range(20):
        assert made.judge(f"User:{number}", HERE, Operation.READ, TOPIC)("t1")
        assert sum(judge.names for judge in made._judges.values()) <= 100


def test_superusers_are_separated_by_semicolons() -> None:
    text = " User:CN=a,OU=b ; User:c;; "
    assert split_super_users(text) == {"User:CN=a,OU=b", "User:c"}
    assert split_super_users("") == frozenset()


# --- filters and checks ---------------------------------------------------------------------------------------------


@given(
    acls,
    st.builds(
        AclFilter,
        st.sampled_from([ResourceType.ANY, TOPIC, GROUP]),
        st.one_of(st.none(), names),
        st.sampled_from([PatternType.ANY, PatternType.MATCH, LITERAL, PREFIXED]),
        st.one_of(st.none(), st.sampled_from([ALICE, EVERYBODY])),
        st.one_of(st.none(), st.sampled_from([HERE, WILDCARD])),
        st.one_of(st.just(Operation.ANY), operations),
        st.sampled_from([Permission.ANY, ALLOW, DENY]),
    ),
)
def test_a_filter_finds_what_it_matches(acls: list[Acl], one: AclFilter) -> None:
    acls = list(dict.fromkeys(acls))
    found = list(one.find(table(acls)))
    assert len(found) == len(set(found))
    assert set(found) == {each for each in acls if one.matches_pattern(each.pattern) and one.matches_rule(each.rule)}


def test_a_filter_that_matches_finds_what_decides_about_a_resource() -> None:
    of_name = [acl(2, "abc"), acl(2, "ab", pattern=PREFIXED), acl(2, WILDCARD)]
    others = [acl(2, "ab"), acl(2, "abcd", pattern=PREFIXED), acl(2, "abc", kind=GROUP)]
    found = AclFilter(TOPIC, "abc", PatternType.MATCH).find(table([*of_name, *others]))
    assert set(found) == set(of_name)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        (acl(2, kind=ResourceType.ANY), "Invalid resourceType ANY"),
        (acl(2, kind=99), "Invalid resourceType 99"),
        (acl(2, pattern=PatternType.MATCH), "Invalid patternType MATCH"),
        (acl(Operation.ANY), "Invalid operation ANY"),
        (acl(2, permission=Permission.ANY), "Invalid permissionType ANY"),
        (acl(2, ""), "empty resource name"),
        (acl(2, "x", kind=CLUSTER), CLUSTER_NAME),
        (acl(2, principal="alice"), "Type:name"),
        (acl(2, host=""), "host is empty"),
    ],
)
def test_an_acl_that_means_nothing_is_not_made(wrong: Acl, sentence: str) -> None:
    assert sentence in (why_invalid(wrong) or "")
    assert why_invalid(acl(2)) is None


@pytest.mark.parametrize(
    "one", [AclFilter(0), AclFilter(pattern_type=0), AclFilter(operation=77), AclFilter(permission=0)]
)
def test_a_filter_of_unknown_kinds_means_nothing(one: AclFilter) -> None:
    assert one.why_unknown() is not None
    assert AclFilter().why_unknown() is None
