"""The order of the site's pages. Pure.

A page that is not here can still be read and found, by links and by the search.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

Entry: TypeAlias = "str | tuple[str, str | Sequence[Entry]]"
"""A page with its own title, a title and a page, or a title and the entries below it."""
EVERY: Final = "*"
"""Stands for all pages of a folder, in the order of their names."""
NAVIGATION: Final[Sequence[Entry]] = (
    ("Home", "index.md"),
    ("Tutorial", "tutorial/index.md"),
    (
        "How-to",
        (
            ("Install", "how-to/install.md"),
            ("Run the container", "container.md"),
            ("Run on S3", "how-to/s3.md"),
            ("Run a cluster", "cluster.md"),
            ("Deploy with Terraform", "terraform.md"),
            ("Modules of Terraform", "terraform-modules.md"),
            ("Deploy on Kubernetes", "kubernetes.md"),
            ("Switch on TLS and users", "how-to/tls-and-users.md"),
            ("Look after groups", "how-to/groups.md"),
            ("Look at the console", "how-to/console.md"),
            ("Use HTTP", "how-to/http.md"),
            ("Query with Spark", "spark.md"),
            ("Migrate from Kafka", "how-to/migrate-from-kafka.md"),
            ("Recover from a disaster", "how-to/disaster-recovery.md"),
            ("Upgrade and roll back", "how-to/upgrade.md"),
            ("Watch and alert", "monitoring.md"),
        ),
    ),
    ("Runbooks", ("runbooks/index.md", "runbooks/*")),
    (
        "Reference",
        (
            "reference/index.md",
            "reference/*",
            ("Metrics", "metrics.md"),
            ("Traces", "tracing.md"),
            ("Log events", "log-events.md"),
            ("Schema registry", "schema-registry.md"),
            ("REST v2", "rest-v2.md"),
            ("Exactly once over HTTP", "rest-keys.md"),
            ("Compatibility", "compatibility.md"),
            ("Limits of memory", "limits.md"),
            ("Formats", "formats.md"),
            ("Changes", "changelog.md"),
        ),
    ),
    (
        "Explanation",
        (
            ("Features", "features.md"),
            ("Design", "architecture.md"),
            ("Security", "security.md"),
            ("Cost", "cost.md"),
            ("Proofs and their limits", "proof.md"),
            ("Measurements", (("How to read them", "measurements.md"), ("Results", "results.md"))),
            ("Decisions", ("adr/index.md", "adr/*")),
            (
                "Work on Firn",
                (
                    ("How to contribute", "contributing.md"),
                    ("The map of the code", "map.md"),
                    ("Tests", "tests.md"),
                    ("Report a weakness", "security-policy.md"),
                ),
            ),
        ),
    ),
)


def toml_of(entries: Sequence[Entry], titles: Mapping[str, str]) -> str:
    """The navigation as a value of TOML. ``titles``: title by path of all pages."""
    return "[" + ", ".join(part for entry in entries for part in _parts(entry, titles)) + "]"


def _parts(entry: Entry, titles: Mapping[str, str]) -> list[str]:
    match entry:
        case str(path) if path.endswith(f"/{EVERY}"):
            folder = path.removesuffix(EVERY)
            below = [one for one in sorted(titles) if one.startswith(folder) and "/" not in one.removeprefix(folder)]
            return [_line(titles[one], one) for one in below if one != f"{folder}index.md"]
        case str(path):
            return [json.dumps(path)]
        case (title, str(path)):
            return [_line(title, path)]
        case (title, below):
            return [f"{{ {json.dumps(title)} = {toml_of(below, titles)} }}"]


def _line(title: str, path: str) -> str:
    return f"{{ {json.dumps(title, ensure_ascii=False)} = {json.dumps(path)} }}"
