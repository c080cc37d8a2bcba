"""Access control lists, with Kafka's names and numbers (KIP-11, KIP-290).

An ACL allows or denies one operation to one principal from one host, on the resources that a pattern matches.

Tests: ``tests/security/test_authorizer.py``, ``tests/metadata/test_acl_changes.py``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import IntEnum
from typing import Final, NamedTuple

WILDCARD: Final = "*"
"""Every resource, as the name of a literal pattern; or every host."""
EVERYBODY: Final = "User:*"
"""The principal of a rule for all users."""
CLUSTER_NAME: Final = "kafka-cluster"
"""The only resource of type ``CLUSTER``."""


class ResourceType(IntEnum):
    """The kinds of resources that rules name."""

    UNKNOWN = 0
    ANY = 1
    TOPIC = 2
    GROUP = 3
    CLUSTER = 4
    TRANSACTIONAL_ID = 5
    DELEGATION_TOKEN = 6
    USER = 7


class PatternType(IntEnum):
    """How the name of a pattern is compared with the name of a resource. ``ANY`` and ``MATCH`` are for filters alone."""

    UNKNOWN = 0
    ANY = 1
    MATCH = 2
    LITERAL = 3
    PREFIXED = 4


class Operation(IntEnum):
    """The operations on a resource."""

    UNKNOWN = 0
    ANY = 1
    ALL = 2
    READ = 3
    WRITE = 4
    CREATE = 5
    DELETE = 6
    ALTER = 7
    DESCRIBE = 8
    CLUSTER_ACTION = 9
    DESCRIBE_CONFIGS = 10
    ALTER_CONFIGS = 11
    IDEMPOTENT_WRITE = 12
    CREATE_TOKENS = 13
    DESCRIBE_TOKENS = 14
    TWO_PHASE_COMMIT = 15


class Permission(IntEnum):
    """Whether a rule allows or denies."""

    UNKNOWN = 0
    ANY = 1
    DENY = 2
    ALLOW = 3


OPERATIONS: Final[Mapping[ResourceType, tuple[Operation, ...]]] = {
    ResourceType.TOPIC: (
        Operation.READ, Operation.WRITE, Operation.CREATE, Operation.DELETE, Operation.ALTER, Operation.DESCRIBE,
        Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
    ),
    ResourceType.GROUP: (
        Operation.READ, Operation.DELETE, Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS,
    ),
    ResourceType.CLUSTER: (
        Operation.CREATE, Operation.ALTER, Operation.DESCRIBE, Operation.CLUSTER_ACTION, Operation.DESCRIBE_CONFIGS,
        Operation.ALTER_CONFIGS, Operation.IDEMPOTENT_WRITE,
    ),
    ResourceType.TRANSACTIONAL_ID: (Operation.WRITE, Operation.DESCRIBE, Operation.TWO_PHASE_COMMIT),
    ResourceType.DELEGATION_TOKEN: (Operation.DESCRIBE,),
    ResourceType.USER: (Operation.CREATE_TOKENS, Operation.DESCRIBE_TOKENS),
}  # fmt: skip
"""The operations that a type of resource has."""


class Pattern(NamedTuple):
    """The resources that a rule is about."""

    resource_type: int
    pattern_type: int
    name: str


class Rule(NamedTuple):
    """One rule of access: pattern, principal, host, operation and permission."""

    principal: str
    """``Type:name``."""
    host: str
    """An address, or ``*``."""
    operation: int
    permission: int


Acls = Mapping[Pattern, Mapping[str, tuple[Rule, ...]]]
"""All rules by pattern and principal. No pattern and no principal in it is without rules."""


class Acl(NamedTuple):
    """One rule and its pattern."""

    pattern: Pattern
    rule: Rule


class AclFilter(NamedTuple):
    """Which ACLs are meant."""

    resource_type: int = ResourceType.ANY
    name: str | None = None
    pattern_type: int = PatternType.ANY
    principal: str | None = None
    host: str | None = None
    operation: int = Operation.ANY
    permission: int = Permission.ANY

    def why_unknown(self) -> str | None:
        """Why this filter means nothing, in a sentence; None if it does."""
        if self.pattern_type not in _PATTERN_TYPES or self.resource_type not in _RESOURCE_TYPES:
            return "Unknown patternFilter."
        if self.operation not in _OPERATIONS or self.permission not in _PERMISSIONS:
            return "Unknown entryFilter."
        return None

    def matches_pattern(self, pattern: Pattern) -> bool:
        if self.resource_type not in (ResourceType.ANY, pattern.resource_type):
            return False
        if self.pattern_type not in (PatternType.ANY, PatternType.MATCH, pattern.pattern_type):
            return False
        if self.name is None:
            return True
        if self.pattern_type != PatternType.MATCH:
            return self.name == pattern.name
        if pattern.pattern_type == PatternType.LITERAL:
            return pattern.name in (self.name, WILDCARD)
        return self.name.startswith(pattern.name)

    def matches_rule(self, rule: Rule) -> bool:
        return (
            self.principal in (None, rule.principal)
            and self.host in (None, rule.host)
            and self.operation in (Operation.ANY, rule.operation)
            and self.permission in (Permission.ANY, rule.permission)
        )

    def find(self, acls: Acls) -> Iterator[Acl]:
        """The ACLs that are meant."""
        if self.name is not None and self.pattern_type in (PatternType.LITERAL, PatternType.PREFIXED):
            types: Iterable[int] = _CONCRETE_TYPES if self.resource_type == ResourceType.ANY else (self.resource_type,)
            candidates = [Pattern(kind, self.pattern_type, self.name) for kind in types]
        else:
            candidates = [pattern for pattern in acls if self.matches_pattern(pattern)]
        for pattern in candidates:
            of_pattern = acls.get(pattern)
            if of_pattern is None:
                continue
            by_principal = of_pattern.values() if self.principal is None else (of_pattern.get(self.principal, ()),)
            for rules in by_principal:
                for rule in rules:
                    if self.matches_rule(rule):
                        yield Acl(pattern, rule)


def exact_filter(acl: Acl) -> AclFilter:
    """The filter that means this ACL and no other."""
    (resource_type, pattern_type, name), rule = acl
    return AclFilter(resource_type, name, pattern_type, *rule)


_PATTERN_TYPES: Final = frozenset(PatternType) - {PatternType.UNKNOWN}
_RESOURCE_TYPES: Final = frozenset(ResourceType) - {ResourceType.UNKNOWN}
_OPERATIONS: Final = frozenset(Operation) - {Operation.UNKNOWN}
_PERMISSIONS: Final = frozenset(Permission) - {Permission.UNKNOWN}
_CONCRETE_TYPES: Final = _RESOURCE_TYPES - {ResourceType.ANY}


def why_invalid(acl: Acl) -> str | None:
    """Why an ACL cannot be made, in a sentence; None if it can."""
    pattern, rule = acl
    if pattern.resource_type not in _CONCRETE_TYPES:
        return f"Invalid resourceType {_named(ResourceType, pattern.resource_type)}."
    if pattern.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        return f"Invalid patternType {_named(PatternType, pattern.pattern_type)}."
    if rule.operation not in _OPERATIONS or rule.operation == Operation.ANY:
        return f"Invalid operation {_named(Operation, rule.operation)}."
    if rule.permission not in (Permission.DENY, Permission.ALLOW):
        return f"Invalid permissionType {_named(Permission, rule.permission)}."
    if not pattern.name:
        return "Invalid empty resource name."
    if pattern.resource_type == ResourceType.CLUSTER and pattern.name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}."
    kind, colon, name = rule.principal.partition(":")
    if not (kind and colon and name):
        return f"The principal {rule.principal!r} is not of the form Type:name, as in User:alice."
    if not rule.host:
        return f"The host is empty: name an address, or {WILDCARD} for every host."
    return None


def _named(kind: type[IntEnum], number: int) -> str:
    return kind(number).name if number in kind.__members__.values() else str(number)
