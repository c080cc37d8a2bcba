"""Decides what a principal may do, as Kafka's ``StandardAuthorizer`` does (KIP-801).

- Superusers may do everything.
- A rule counts if its pattern matches the resource: a literal pattern with the same name or ``*``, or a prefixed one.
- It counts for its principal, or for all with ``User:*``; from its host, or from all with ``*``.
- One rule that denies the operation, or all operations, beats every rule that allows it.
- To allow READ, WRITE, DELETE or ALTER allows DESCRIBE, too; to allow ALTER_CONFIGS allows DESCRIBE_CONFIGS.
- If no rule is counted, nothing is allowed. ``allow.everyone.if.no.acl.found`` allows everything on a resource that no pattern
  matches at all.

Decisions are kept until the rules change.
"""

from __future__ import annotations

from typing import Final

from app.addresses import plain_address
from app.security.acls import EVERYBODY, OPERATIONS, WILDCARD, Acls, Operation, Pattern, PatternType, Permission
from app.security.acls import ResourceType as Kind

IMPLY_DESCRIBE: Final = frozenset(
    {Operation.DESCRIBE, Operation.READ, Operation.WRITE, Operation.DELETE, Operation.ALTER, Operation.ALL}
)
IMPLY_DESCRIBE_CONFIGS: Final = frozenset({Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS, Operation.ALL})

DECISIONS_MAX: Final = 200_000
"""Decisions that are kept, of all callers together: some 40 MB. Then they are made again."""

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


class Authorizer:
    """The rules of now, and what was decided by them."""

    __slots__ = ("_acls", "_allow_everyone", "_count", "_decisions", "_super_users")

    def __init__(
        self, super_users: frozenset[str] = frozenset(), *, allow_everyone_if_no_acl_found: bool = False
    ) -> None:
        self._super_users = super_users
        self._allow_everyone = allow_everyone_if_no_acl_found
        self._acls: Acls = {}
        self._decisions: dict[Who, dict[What, bool]] = {}
        self._count = 0

    @property
    def acls(self) -> Acls:
        return self._acls

    def follow(self, acls: Acls) -> bool:
        """Decide by ``acls`` from now on. Returns: whether they are others than before. The mapping must never change."""
        if acls is self._acls:
            return False
        self._acls = acls
        self._forget()
        return True

    def is_super_user(self, principal: str) -> bool:
        return principal in self._super_users

    def allows(self, principal: str, host: str, operation: int, kind: int, name: str) -> bool:
        """Whether ``principal``, connected from ``host``, may do ``operation`` with the resource ``name`` of type ``kind``."""
        decisions = self._decisions.get((principal, host))
        if decisions is None:
            decisions = self._decisions[principal, host] = {}
            self._count += 1
        what = (operation, kind, name)
        allowed = decisions.get(what)
        if allowed is None:
            allowed = self._decide(principal, host, operation, kind, name)
            if self._count >= DECISIONS_MAX:
                self._forget()
            else:
                decisions[what] = allowed
                self._count += 1
        return allowed

    def allows_any(self, principal: str, host: str, operation: int, kind: int) -> bool:
        """Whether there can be a resource of type ``kind`` with which ``operation`` is allowed. As Kafka's
        ``authorizeByResourceType``, it counts rules for the operation itself and for all, no implied ones."""
        if self.allows(principal, host, operation, kind, _ANY_NAME):
            return True
        decisions = self._decisions.get((principal, host))
        known = None if decisions is None else decisions.get((operation, kind, None))
        if known is None:
            known = self._decide_any(principal, host, operation, kind)
            if decisions is not None:
                decisions[operation, kind, None] = known
                self._count += 1
        return known

    def _decide_any(self, principal: str, host: str, operation: int, kind: int) -> bool:
        allowed: list[Pattern] = []
        denied: set[tuple[int, str]] = set()
        for pattern, by_principal in self._acls.items():
            if pattern.resource_type != kind:
                continue
            for rule in (*by_principal.get(principal, ()), *by_principal.get(EVERYBODY, ())):
                if rule.operation not in (operation, Operation.ALL) or not _is_from(rule.host, host):
                    continue
                if rule.permission == Permission.ALLOW:
                    allowed.append(pattern)
                elif pattern.pattern_type == _LITERAL and pattern.name == WILDCARD:
                    return False
                else:
                    denied.add((pattern.pattern_type, pattern.name))
        return any(
            (pattern.pattern_type == _LITERAL and pattern.name == WILDCARD)
            or not (
                (pattern.pattern_type == _LITERAL and (_LITERAL, pattern.name) in denied)
                or any((_PREFIXED, pattern.name[:length]) in denied for length in range(1, len(pattern.name) + 1))
            )
            for pattern in allowed
        )

    def operations(self, principal: str, host: str, kind: Kind, name: str) -> int:
        """The operations that are allowed with a resource, as bits (KIP-430)."""
        return sum(
            1 << operation for operation in OPERATIONS[kind] if self.allows(principal, host, operation, kind, name)
        )

    def _forget(self) -> None:
        self._decisions = {}
        self._count = 0

    def _decide(self, principal: str, host: str, operation: int, kind: int, name: str) -> bool:
        if principal in self._super_users:
            return True
        get = self._acls.get
        found = [get(Pattern(kind, _LITERAL, name))]
        if name != WILDCARD:
            found.append(get(Pattern(kind, _LITERAL, WILDCARD)))
        # To look up every prefix takes some microseconds, and to know which ones there are would take a look at every change.
        found += [get((kind, _PREFIXED, name[:length])) for length in range(1, len(name) + 1)]  # type: ignore[call-overload]
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
    # IPv6 has several forms, and Java writes another than Python.
    return of_rule in (WILDCARD, host) or plain_address(of_rule) == plain_address(host)
