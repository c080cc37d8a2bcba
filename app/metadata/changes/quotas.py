"""Quotas of clients (KIP-13, 124, 546, 599, 612): their records, changes and filters. Pure.

An entity is a user, a client id, both together, or an address; each part may be the default of its kind. Quotas are
enforced in ``app/handlers/policy/client_quotas.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType
from typing import Final, NamedTuple

from app.configs.numbers import INT_MAX, LONG_MAX
from app.core.addresses import plain_address, read_address
from app.core.errors import ErrorCode, RequestRejected
from app.metadata.changes.topic_changes import PlanInputs, Planned
from app.metadata.image.draft import ImageDraft
from app.metadata.image.records import LEVEL_FEATURE, SECURITY_LEVEL, QuotaEntity, quota_change

DEFAULT: Final = ""
"""In place of a name: the default, for all entities without a quota of their own. A real name is never empty."""

USER: Final = "user"
CLIENT_ID: Final = "client-id"
IP: Final = "ip"
ENTITY_TYPES: Final = (USER, CLIENT_ID, IP)
"""In the order of the fields of ``QuotaEntity``."""


class QuotaKey(NamedTuple):
    """A kind of limit, and the values that it may have."""

    of_address: bool
    whole: bool
    """Whether only whole numbers are limits."""
    maximum: float


TIER_RATE: Final = "firn.tier_byte_rate"
"""The bytes that each broker may copy to the object store in a second. Segments hold records of many users, so no user has a
limit of its own."""
TIER_ENTITY: Final = QuotaEntity(DEFAULT, None, None)
"""The entity of this limit: the default user."""

_BYTE_RATE: Final = QuotaKey(False, True, LONG_MAX)

KEYS: Final[Mapping[str, QuotaKey]] = MappingProxyType(
    {
        "producer_byte_rate": _BYTE_RATE,
        "consumer_byte_rate": _BYTE_RATE,
        "request_percentage": QuotaKey(False, False, INT_MAX),
        "controller_mutation_rate": QuotaKey(False, False, INT_MAX),
        "firn.cold_read_byte_rate": _BYTE_RATE,
        TIER_RATE: QuotaKey(False, True, LONG_MAX),
        "connection_creation_rate": QuotaKey(True, True, INT_MAX),
    }
)
"""By name."""


class QuotaOperation(NamedTuple):
    """One limit of an entity is set, or (None) taken away."""

    key: str
    value: float | None


class Match(IntEnum):
    """How a filter compares one part of an entity (KIP-546)."""

    EXACT = 0
    DEFAULT = 1
    ANY = 2


class Component(NamedTuple):
    """One condition of a filter."""

    entity_type: str
    match: Match
    name: str = ""


def quota_entity(parts: Sequence[tuple[str, str | None]]) -> QuotaEntity:
    """The entity that a request names by ``parts``: type and name, or type and None for the default of the type.

    Raises: RequestRejected INVALID_REQUEST.
    """
    named: dict[str, str] = {}
    for entity_type, name in parts:
        if entity_type not in ENTITY_TYPES:
            raise _invalid(f"{entity_type!r} is not a type of entity with quotas; they are {', '.join(ENTITY_TYPES)}.")
        if entity_type in named:
            raise _invalid(f"The entity names its {entity_type} twice.")
        if name == DEFAULT:
            raise _invalid(f"The name of the {entity_type} is empty.")
        named[entity_type] = DEFAULT if name is None else name
    if not named:
        raise _invalid("The entity is empty: name a user, a client-id, both, or an ip.")
    if IP in named and len(named) > 1:
        raise _invalid("An ip has quotas of its own: name no user and no client-id beside it.")
    if named.get(IP):
        try:
            named[IP] = str(read_address(named[IP]))
        except ValueError:
            raise _invalid(f"{named[IP]!r} is not an IP address.") from None
    return QuotaEntity(*(named.get(one) for one in ENTITY_TYPES))


def alter_quotas(
    draft: ImageDraft, around: PlanInputs, entity: QuotaEntity, operations: Sequence[QuotaOperation]
) -> Planned[None]:
    """Change the limits of one entity. Raises: RequestRejected INVALID_REQUEST, INVALID_UPDATE_VERSION."""
    del around
    if draft.level < SECURITY_LEVEL:
        raise RequestRejected(
            ErrorCode.INVALID_UPDATE_VERSION,
            f"Quotas need level {SECURITY_LEVEL} of firn.version, and this cluster is at level {draft.level}: once no older "
            f"program is to read the bucket, raise it with `firn cluster features --upgrade {LEVEL_FEATURE}={SECURITY_LEVEL}`.",
        )
    before = draft.quotas.get(entity, {})
    limits = dict(before)
    seen: set[str] = set()
    for key, value in operations:
        if key in seen:
            raise _invalid(f"The request changes {key} of one entity twice.")
        seen.add(key)
        known = KEYS.get(key)
        if known is None or known.of_address != (entity.ip is not None):
            names = ", ".join(name for name, one in KEYS.items() if one.of_address == (entity.ip is not None))
            raise _invalid(f"{key!r} is not a quota of such an entity; it may have {names}.")
        if value is None:
            limits.pop(key, None)
            continue
        if key == TIER_RATE and entity != TIER_ENTITY:
            raise _invalid(
                f"The quota {TIER_RATE} limits what brokers copy to the object store, and segments hold records of many users: "
                "it can be set for the default user only."
            )
        if not 0 < value <= known.maximum:
            raise _invalid(f"The quota {key} must be above 0 and at most {known.maximum:.0f}, not {value:g}.")
        if known.whole and value != int(value):
            raise _invalid(f"The quota {key} must be a whole number, not {value:g}.")
        limits[key] = value
    return Planned([] if limits == before else [quota_change(entity, limits)], None)


def matching_quotas(
    quotas: Mapping[QuotaEntity, Mapping[str, float]], components: Sequence[Component], *, strict: bool
) -> Iterator[tuple[QuotaEntity, Mapping[str, float]]]:
    """Entities with limits that meet every condition; with ``strict``, those without any part that no condition names.

    Raises: RequestRejected INVALID_REQUEST, UNSUPPORTED_VERSION.
    """
    wanted: dict[str, Component] = {}
    for one in components:
        if one.entity_type in wanted:
            raise _invalid(f"The filter names {one.entity_type} twice.")
        if one.entity_type not in ENTITY_TYPES:
            raise RequestRejected(
                ErrorCode.UNSUPPORTED_VERSION, f"{one.entity_type!r} is not a type of entity with quotas."
            )
        wanted[one.entity_type] = one if one.entity_type != IP else one._replace(name=plain_address(one.name))
    if IP in wanted and len(wanted) > 1:
        raise _invalid("An ip has quotas of its own: a filter names no user and no client-id beside it.")
    for entity, limits in quotas.items():
        if all(
            _meets(name, wanted.get(entity_type), strict=strict)
            for entity_type, name in zip(ENTITY_TYPES, entity, strict=True)
        ):
            yield entity, limits


def _meets(name: str | None, component: Component | None, *, strict: bool) -> bool:
    if component is None:
        return name is None or not strict
    if name is None:
        return False
    match component.match:
        case Match.EXACT:
            return name == component.name
        case Match.DEFAULT:
            return name == DEFAULT
        case _:
            return True


def _invalid(sentence: str) -> RequestRejected:
    return RequestRejected(ErrorCode.INVALID_REQUEST, sentence)
