"""Metadata and rules of schemas: which ones a config adds.

A config may name metadata and rules that every new schema has unless it has its own (default), and those that it has in any case
(override). Configs and schemas of other registries may have any JSON in their place, so each merge takes any JSON.

Source: "Data Contracts" in the documentation of Confluent's Schema Registry.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

from app.registry.refusals import Code, RegistryRefusal

ITEMS_MAX: Final = 10_000
"""Items of all lists that one merge joins (rules, sensitive properties): about 4 ms."""


class Layers(NamedTuple):
    """The members of a config that lie under and over a schema's own part."""

    default: str
    override: str


METADATA: Final = Layers("defaultMetadata", "overrideMetadata")
RULES: Final = Layers("defaultRuleSet", "overrideRuleSet")


def merged(under: Any, over: Any) -> Any:
    """Metadata or a rule set with those of a later layer. None is a layer that is not there.

    The tags, the properties and the rules of ``over`` replace those of ``under`` that have the same name. The others stay.

    Raises: RegistryRefusal if the lists that must be joined have more than ``ITEMS_MAX`` items.
    """
    if not isinstance(under, dict) or not isinstance(over, dict):
        return under if over is None else over
    both = [(under[member], over[member]) for member in under.keys() & over.keys()]
    count = sum(len(a) + len(b) for a, b in both if isinstance(a, list) and isinstance(b, list))
    if count > ITEMS_MAX:
        raise RegistryRefusal(
            Code.INVALID_SCHEMA,
            f"The schema and its configs have lists of {count} rules or sensitive properties to join, and {ITEMS_MAX} are allowed."
            " Send fewer.",
        )
    return under | {member: _joined(under.get(member), value) for member, value in over.items()}


def _joined(under: Any, over: Any) -> Any:
    if isinstance(under, dict) and isinstance(over, dict):
        return under | over
    if isinstance(under, list) and isinstance(over, list):
        names = {name for one in over if (name := _name(one)) is not None}
        return [one for one in under if _name(one) not in names] + over
    return under if over is None else over


def _name(item: Any) -> str | None:
    """The name of a rule, or of a sensitive property; None if it has no name."""
    name = item.get("name") if isinstance(item, dict) else item
    return name if isinstance(name, str) else None
