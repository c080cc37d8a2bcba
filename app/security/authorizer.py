"""Decides whether a principal may do an operation, as Kafka's ``StandardAuthorizer`` does (KIP-801).

- Superusers may do everything.
- A rule counts if its pattern matches the resource: a literal pattern with the same name or ``*``, or a prefixed one.
- It counts for its principal, or for all with ``User:*``; from its host, or from all with ``*``.
- One rule that denies the operation, or all operations, beats every rule that allows it.
- To allow READ, WRITE, DELETE or ALTER allows DESCRIBE, too; to allow ALTER_CONFIGS allows DESCRIBE_CONFIGS.
- If no rule is counted, nothing is allowed. ``allow.everyone.if.no.acl.found`` allows everything on a resource that no pattern
  matches at all.

Decisions are kept until the rules change, up to a number of bytes. A client chooses the names that it asks for. So the work for a
name does not depend on its length: only prefixes are looked up whose length some rule has. Where rules have too many lengths, and
for lists of names, a ``Judge`` decides. It looks at every rule once, and then at each name in logarithmic time.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from sys import getsizeof
from typing import Final

from app.core.addresses import ADDRESS_CHARS_MAX, plain_address
from app.security.acls import EVERYBODY, OPERATIONS, WILDCARD, Acls, Operation, Pattern, PatternType, Permission, Rule
from app.security.acls import ResourceType as Kind

IMPLY_DESCRIBE: Final = frozenset(
    {Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER, Operation.ALL}
)
IMPLY_DESCRIBE_CONFIGS: Final = frozenset({Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, Operation.ALL})

DECISIONS_BYTES_MAX: Final = 48 << 20
"""Memory of the decisions that are kept, of all callers together: some 200,000. Then they are made again."""
DECISION_BYTES: Final = 180
"""Memory of one, beside its name."""
CALLER_BYTES: Final = 500
"""Memory of a caller with decisions, beside its names."""
KEPT_NAME_CHARS_MAX: Final = 255
"""Decisions for longer names are not kept: no topic has such a name, and other names are short but for those that attack."""
PREFIX_CHARS_MAX: Final = 32_768
"""Characters of all the prefixes of one name that are looked up: every length that the name of a topic can have makes 31,000."""
ADDRESSES_MAX: Final = 4096
"""Addresses of rules and callers whose one form is kept: to find it takes microseconds, and a judge looks at every rule."""
JUDGES_MAX: Final = 1_000
JUDGED_NAMES_MAX: Final = 200_000
"""Names of patterns in the judges that are kept, of all callers together: some 15 MB."""

Who = tuple[str, str]
"""Principal and host."""
What = tuple[int, int, str | None]
"""Operation, type and name of a resource; without a name: of any."""

_LITERAL: Final = int(PatternType.LITERAL)
_PREFIXED: Final = int(PatternType.PREFIXED)
_ANY_NAME: Final = "hardcode"
"""The resource that Kafka asks for, to find out who may do everything with a type of resource."""


def split_super_users(text: str) -> frozenset[str]:
    """The principals of ``super.users``, which are separated by semicolons because names of certificates have commas."""
    return frozenset(one for part in text.split(";") if (one := part.strip()))


class _Prefixes:
    """Which names begin with one of some prefixes."""

    __slots__ = ("_shortest",)

    def __init__(self, prefixes: Iterable[str]) -> None:
        self._shortest: list[str] = []
        """Sorted, without those that begin with another one. So of these only the last one that is not behind a name can be the
        beginning of that name."""
        for prefix in sorted(prefixes):
            if not (self._shortest and prefix.startswith(self._shortest[-1])):
                self._shortest.append(prefix)

    def begin(self, name: str) -> bool:
        """Whether one of them begins ``name``."""
        at = bisect_right(self._shortest, name)
        return at > 0 and name.startswith(self._shortest[at - 1])


class _Names:
    """Names that some patterns match."""

    __slots__ = ("_all", "_literal", "_prefixes")

    def __init__(self, patterns: Iterable[Pattern]) -> None:
        literal: set[str] = set()
        prefixes: list[str] = []
        for _, pattern_type, name in patterns:
            if pattern_type == _LITERAL:
                literal.add(name)
            else:
                prefixes.append(name)
        self._all = WILDCARD in literal
        self._literal = literal
        self._prefixes = _Prefixes(prefixes)

    def __contains__(self, name: str) -> bool:
        return self._all or name in self._literal or self._prefixes.begin(name)

    def cover(self, pattern: Pattern) -> bool:
        """Whether they match all that ``pattern`` does, as Kafka sees it. The pattern for all names is covered by itself only."""
        _, pattern_type, name = pattern
        if self._all:
            return True
        if pattern_type == _LITERAL:
            return name != WILDCARD and (name in self._literal or self._prefixes.begin(name))
        return self._prefixes.begin(name)


class Judge:
    """Decides one operation of one caller for names of one type. It is right until the rules change."""

    __slots__ = ("_allowed", "_denied", "_matched", "names")

    def __init__(self, allowed: list[Pattern], denied: list[Pattern], matched: list[Pattern] | None) -> None:
        """``matched``: patterns of all rules, if resources without rules are for everybody."""
        self._allowed = _Names(allowed)
        self._denied = _Names(denied)
        self._matched = None if matched is None else _Names(matched)
        self.names = len(allowed) + len(denied) + len(matched or ())
        """Patterns that it holds."""

    def __call__(self, name: str) -> bool:
        if name in self._denied:
            return False
        return name in self._allowed or (self._matched is not None and name not in self._matched)


def _allow_all(_: str) -> bool:
    return True


class Authorizer:
    """The present rules, and the decisions that they gave."""

    __slots__ = (
        "_acls",
        "_allow_everyone",
        "_bytes",
        "_decisions",
        "_judged_names",
        "_judges",
        "_lengths",
        "_super_users",
    )

    def __init__(
        self, super_users: frozenset[str] = frozenset(), *, allow_everyone_if_no_acl_found: bool = False
    ) -> None:
        self._super_users = super_users
        self._allow_everyone = allow_everyone_if_no_acl_found
        self._acls: Acls = {}
        self._decisions: dict[Who, dict[What, bool]] = {}
        self._bytes = 0
        self._judges: dict[tuple[Who, int, int], Judge] = {}
        self._judged_names = 0
        self._lengths: dict[int, tuple[int, ...] | None] | None = None
        """Of the names of prefixed patterns, by type of resource, in ascending order; None for too many, and for not known yet."""

    @property
    def memory_bytes(self) -> int:
        """The memory of the decisions that are kept."""
        return self._bytes

    @property
    def acls(self) -> Acls:
        return self._acls

    def follow(self, acls: Acls) -> bool:
        """Decide by ``acls`` from now on. Returns: whether they are others than before. The mapping must never change."""
        if acls is self._acls:
            return False
        self._acls = acls
        self._lengths = None
        self._judges = {}
        self._judged_names = 0
        self._forget()
        return True

    def is_super_user(self, principal: str) -> bool:
        return principal in self._super_users

    def allows(self, principal: str, host: str, operation: int, kind: int, name: str) -> bool:
        """Whether ``principal``, connected from ``host``, may do ``operation`` with the resource ``name`` of type ``kind``."""
        decisions = self._decisions.get((principal, host))
        what = (operation, kind, name)
        if decisions is not None:
            known = decisions.get(what)
            if known is not None:
                return known
        allowed = self._decide(principal, host, operation, kind, name)
        if len(name) <= KEPT_NAME_CHARS_MAX:
            self._keep(principal, host, what, allowed)
        return allowed

    def allows_by_name(self, principal: str, host: str, operation: int, kind: int, name: str) -> bool:
        """As ``allows``, if a rule names the resource itself: rules for all names or for a prefix do not suffice."""
        if not self.allows(principal, host, operation, kind, name):
            return False
        by_principal = self._acls.get((kind, _LITERAL, name), {})  # type: ignore[call-overload]
        return principal in self._super_users or any(
            rule.permission != Permission.DENY and _includes(rule.operation, operation) and _is_from(rule.host, host)
            for whose in (principal, EVERYBODY)
            for rule in by_principal.get(whose, ())
        )

    def _keep(self, principal: str, host: str, what: What, allowed: bool) -> None:
        decisions = self._decisions.get((principal, host))
        size = DECISION_BYTES + getsizeof(what[2])
        if decisions is None:
            size += CALLER_BYTES + getsizeof(principal) + getsizeof(host)
        if self._bytes + size > DECISIONS_BYTES_MAX:
            self._forget()
            return
        if decisions is None:
            decisions = self._decisions[principal, host] = {}
        decisions[what] = allowed
        self._bytes += size

    def judge(self, principal: str, host: str, operation: int, kind: int) -> Callable[[str], bool]:
        """As ``allows``, for many names: a look at every rule now, and less than a microsecond for each name. To be used
        before the rules can change."""
        if principal in self._super_users:
            return _allow_all
        key = ((principal, host), operation, kind)
        judge = self._judges.get(key)
        if judge is None:
            judge = self._new_judge(principal, host, operation, kind)
            if len(self._judges) >= JUDGES_MAX or self._judged_names + judge.names > JUDGED_NAMES_MAX:
                self._judges, self._judged_names = {}, 0
            if judge.names <= JUDGED_NAMES_MAX:
                self._judges[key] = judge
                self._judged_names += judge.names
        return judge

    def _new_judge(self, principal: str, host: str, operation: int, kind: int) -> Judge:
        allowed: list[Pattern] = []
        denied: list[Pattern] = []
        for pattern, rule in self._rules_for(principal, kind):
            if rule.permission == Permission.DENY:
                if rule.operation in (operation, Operation.ALL) and _is_from(rule.host, host):
                    denied.append(pattern)
            elif _includes(rule.operation, operation) and _is_from(rule.host, host):
                allowed.append(pattern)
        return Judge(allowed, denied, [one for one in self._acls if one[0] == kind] if self._allow_everyone else None)

    def allows_any(self, principal: str, host: str, operation: int, kind: int) -> bool:
        """Whether there can be a resource of type ``kind`` with which ``operation`` is allowed. As Kafka's
        ``authorizeByResourceType``, it counts rules for the operation itself and for all, no implied ones."""
        if self.allows(principal, host, operation, kind, _ANY_NAME):
            return True
        decisions = self._decisions.get((principal, host))
        known = None if decisions is None else decisions.get((operation, kind, None))
        if known is None:
            known = self._decide_any(principal, host, operation, kind)
            self._keep(principal, host, (operation, kind, None), known)
        return known

    def _decide_any(self, principal: str, host: str, operation: int, kind: int) -> bool:
        allowed: list[Pattern] = []
        denied: list[Pattern] = []
        for pattern, rule in self._rules_for(principal, kind):
            if rule.operation in (operation, Operation.ALL) and _is_from(rule.host, host):
                (allowed if rule.permission == Permission.ALLOW else denied).append(pattern)
        names = _Names(denied)
        return any(not names.cover(pattern) for pattern in allowed)

    def _rules_for(self, principal: str, kind: int) -> Iterator[tuple[Pattern, Rule]]:
        """All rules for a principal, its own and everybody's, about one type of resource."""
        concerned = [
            (pattern, by_principal)
            for pattern, by_principal in self._acls.items()
            if pattern[0] == kind and (principal in by_principal or EVERYBODY in by_principal)
        ]
        for pattern, by_principal in concerned:
            for whose in (principal, EVERYBODY):
                for rule in by_principal.get(whose, ()):
                    yield pattern, rule

    def operations(self, principal: str, host: str, kind: Kind, name: str) -> int:
        """The operations that are allowed with a resource, as bits (KIP-430)."""
        return sum(
            1 << operation for operation in OPERATIONS[kind] if self.allows(principal, host, operation, kind, name)
        )

    def _forget(self) -> None:
        self._decisions = {}
        self._bytes = 0

    def _lengths_of(self, kind: int) -> tuple[int, ...] | None:
        """Lengths that prefixes of the type have; None if to look up one prefix of each length would cost too much."""
        lengths = self._lengths
        if lengths is None:
            found: dict[int, set[int]] = {}
            for resource_type, _, name in [pattern for pattern in self._acls if pattern[1] == _PREFIXED]:
                found.setdefault(resource_type, set()).add(len(name))
            lengths = self._lengths = {
                one: tuple(sorted(its)) if sum(its) <= PREFIX_CHARS_MAX else None for one, its in found.items()
            }
        return lengths.get(kind, ())

    def _decide(self, principal: str, host: str, operation: int, kind: int, name: str) -> bool:
        if principal in self._super_users:
            return True
        lengths = self._lengths_of(kind)
        if lengths is None:
            return self.judge(principal, host, operation, kind)(name)
        get = self._acls.get
        found = [get(Pattern(kind, _LITERAL, name))]
        if name != WILDCARD:
            found.append(get(Pattern(kind, _LITERAL, WILDCARD)))
        size = len(name)
        for length in lengths:
            if length > size:
                break
            found.append(get((kind, _PREFIXED, name[:length])))  # type: ignore[call-overload]
        allowed = matched = False
        for by_principal in found:
            if by_principal is None:
                continue
            matched = True
            for whose in (principal, EVERYBODY):
                for rule in by_principal.get(whose, ()):
                    if rule.permission == Permission.DENY:
                        if rule.operation in (operation, Operation.ALL) and _is_from(rule.host, host):
                            return False
                    elif not allowed and _includes(rule.operation, operation) and _is_from(rule.host, host):
                        allowed = True
        return allowed or (self._allow_everyone and not matched)


def _includes(of_rule: int, operation: int) -> bool:
    """Whether a rule that allows ``of_rule`` allows ``operation``."""
    if operation == Operation.DESCRIBE:
        return of_rule in IMPLY_DESCRIBE
    if operation == Operation.DESCRIBE_CONFIGS:
        return of_rule in IMPLY_DESCRIBE_CONFIGS
    return of_rule in (operation, Operation.ALL)


def _is_from(of_rule: str, host: str) -> bool:
    """Whether a rule for one host, or for all, is for ``host``."""
    if of_rule in (WILDCARD, host):
        return True
    # IPv6 has several forms, and Java writes another than Python. No form of an address is long.
    return len(of_rule) <= ADDRESS_CHARS_MAX and _may_be(of_rule, host) and _plain(of_rule) == _plain(host)


def _may_be(of_rule: str, host: str) -> bool:
    """Whether two addresses that are written differently can be the same: a look that is quicker than reading both."""
    if ":" not in host:
        return "ffff" in of_rule.lower()  # an address of IPv4 inside of IPv6
    ends = [text.rpartition(":")[2].lstrip("0").lower() for text in (of_rule, host)]
    return ends[0] == ends[1] or any("." in end or "%" in end for end in ends)


_plain: Final = lru_cache(maxsize=ADDRESSES_MAX)(plain_address)
