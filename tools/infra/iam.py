"""The decisions of IAM, as far as the policies of infra/ need them: identity and resource policies of one account.

From AWS's "Policy evaluation logic": a Deny that applies wins, else an Allow that applies, else it is denied.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

Document = Mapping[str, Any]

_EXISTS_OPTIONAL: Final = "IfExists"


def allowed(
    documents: Iterable[Document], action: str, resource: str, context: Mapping[str, str] | None = None
) -> bool:
    """Whether a request is allowed by policies that all belong to the same caller."""
    decided = False
    for document in documents:
        for statement in _as_list(document["Statement"]):
            if _applies(statement, action, resource, context or {}):
                if statement["Effect"] == "Deny":
                    return False
                decided = True
    return decided


def _applies(statement: Document, action: str, resource: str, context: Mapping[str, str]) -> bool:
    if "NotAction" in statement or "NotResource" in statement:
        raise ValueError("NotAction and NotResource are not understood here; write what is meant")
    return (
        any(_like(pattern.lower(), action.lower()) for pattern in _as_list(statement["Action"]))
        and any(_like(pattern, resource) for pattern in _as_list(statement["Resource"]))
        and all(
            _holds(operator, context.get(key), _as_list(values))
            for operator, wanted in statement.get("Condition", {}).items()
            for key, values in wanted.items()
        )
    )


def _holds(operator: str, given: str | None, values: list[Any]) -> bool:
    texts = [str(value).lower() if isinstance(value, bool) else str(value) for value in values]
    if operator == "Null":
        return (given is None) == (texts == ["true"])
    base = operator.removesuffix(_EXISTS_OPTIONAL)
    if given is None:
        # A key that the request lacks: an operator with IfExists passes, a negated one does too, any other fails.
        return base != operator or "Not" in base
    match base:
        case "StringEquals" | "Bool":
            return given in texts
        case "StringLike" | "ArnLike" | "ArnEquals":
            return any(_like(text, given) for text in texts)
        case "StringNotEquals":
            return given not in texts
        case "StringNotLike" | "ArnNotEquals" | "ArnNotLike":
            return not any(_like(text, given) for text in texts)
    raise ValueError(f"the condition operator {operator} is not understood here")


def actions_of(document: Document) -> set[str]:
    """The actions that its Allow statements name."""
    statements = [one for one in _as_list(document["Statement"]) if one["Effect"] == "Allow"]
    return {action for one in statements for action in _as_list(one["Action"])}


def normal(document: Document) -> list[Any]:
    """Statements in one order and form, without their names: equal if and only if two documents say the same in the same way."""
    return sorted((_normal(one) for one in _as_list(document["Statement"])), key=repr)


def _normal(value: Any) -> Any:
    if isinstance(value, Mapping):
        return sorted((key, _normal(inner)) for key, inner in value.items() if key != "Sid")
    if isinstance(value, list):
        ordered = sorted((_normal(inner) for inner in value), key=repr)
        return ordered[0] if len(ordered) == 1 else ordered
    return value


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list) else [value]


@functools.cache
def _pattern(text: str) -> re.Pattern[str]:
    return re.compile(re.escape(text).replace(r"\*", ".*").replace(r"\?", "."), re.DOTALL)


def _like(pattern: str, text: str) -> bool:
    return _pattern(pattern).fullmatch(text) is not None
