"""The rules of a bucket that change objects without a request: versions, and lifecycle rules. Pure.

Write-ahead logs are written and deleted all the time. In a versioned bucket nothing of them ever goes, and a rule that deletes or
moves their objects takes acknowledged records away (ADR 0037).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

HARMLESS: Final = frozenset(
    {"AbortIncompleteMultipartUpload", "NoncurrentVersionExpiration", "NoncurrentVersionTransitions"}
)
"""The permitted effects of a rule: on uploads that were given up, and on versions that are not current."""
ACTIONS: Final = ("Expiration", "Transitions", "Transition")


class BucketRules(NamedTuple):
    """As GetBucketVersioning and GetBucketLifecycleConfiguration say."""

    versioned: bool
    lifecycle: Sequence[Mapping[str, Any]]


def rules_that_touch(rules: BucketRules, prefix: str) -> list[str]:
    """The names of enabled lifecycle rules that may delete or move present objects whose keys begin with ``prefix``."""
    return [
        str(rule.get("ID") or "without a name")
        for rule in rules.lifecycle
        if rule.get("Status") == "Enabled" and any(_acts(rule, each) for each in ACTIONS) and _reaches(rule, prefix)
    ]


def _acts(rule: Mapping[str, Any], action: str) -> bool:
    found = rule.get(action)
    # A rule that only clears markers of deletions away does nothing to objects.
    return bool(found) and not (action == "Expiration" and set(found or ()) == {"ExpiredObjectDeleteMarker"})


def _reaches(rule: Mapping[str, Any], prefix: str) -> bool:
    conditions = rule.get("Filter") or {}
    conditions = {**conditions, **conditions.get("And", {})}
    if "Tag" in conditions or conditions.get("Tags"):
        return False  # no object of Firn has tags
    of_rule = conditions.get("Prefix", rule.get("Prefix") or "")
    return bool(prefix.startswith(of_rule) or of_rule.startswith(prefix))
