"""Reference pages that are made from the code: settings, commands, HTTP, the Kafka protocol, error codes and error messages.

They are written into the sources of the site only. Nothing of them is committed, so nothing of them can be out of date.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from app.cli.commands import application
from app.configs.client_metrics import DEFINITIONS as CLIENT_METRICS
from app.configs.definition import Definition
from app.configs.environment import environment_name
from app.configs.topic_definitions import TOPIC_DEFINITIONS
from app.configs.values import format_value
from app.configs.without_effect import BROKER_WITHOUT_EFFECT, GROUP_WITHOUT_EFFECT, TOPIC_WITHOUT_EFFECT
from app.core.errors import RETRIABLE, ErrorCode
from app.core.metrics import Registry
from app.http.application import create_app
from app.http.errors import REST_CODE
from app.http.gateway import HttpSettings
from app.machine.runtime import SystemClock
from app.metadata.changes.features import OF_PROTOCOL
from app.metadata.changes.group_configs import GROUP_DEFINITIONS
from app.settings import catalogue
from app.wire.versions import SERVED
from tools.error_sentences import Message, all_messages

FOLDER: Final = "reference"
PRIVATE_FROM: Final = 20_000
"""Keys of APIs that processes of Firn use among themselves (ADR 0003)."""
_METHODS: Final = ("get", "post", "put", "patch", "delete")


def made_pages() -> Mapping[str, str]:
    """The text of each page by its path among the site's sources."""
    return {
        f"{FOLDER}/settings.md": settings_page(),
        f"{FOLDER}/commands.md": commands_page(),
        f"{FOLDER}/http.md": http_page(openapi()),
        f"{FOLDER}/protocol.md": protocol_page(),
        f"{FOLDER}/error-codes.md": error_codes_page(),
        f"{FOLDER}/error-messages.md": error_messages_page(list(all_messages())),
    }


def settings_page() -> str:
    """Every setting of brokers, topics, groups and client metrics, and those of Kafka that have no effect."""
    broker = [(f"`{name}`", code(one.default), text(one.documentation)) for name, one in sorted(catalogue().items())]
    without = {
        **{name: one.reason for name, one in BROKER_WITHOUT_EFFECT.items()},
        **{name: one.reason for name, one in TOPIC_WITHOUT_EFFECT.items()},
        **{name: one.reason for name, one in GROUP_WITHOUT_EFFECT.items()},
    }
    parts = [
        "# Settings",
        "Sources of a broker's settings, from the weakest to the strongest: defaults, the file of `--config`, environment "
        "variables, flags, `--set NAME=VALUE`. `firn doctor --config FILE` lists the outcome of each setting of a file.",
        "The environment variable of a setting has `_` for `.` and is in capitals: "
        + ", ".join(f"`{name}` is `{environment_name(name)}`" for name in ("log.segment.bytes", "firn.durability"))
        + ".",
        "## Of brokers",
        table(("setting", "default", "meaning"), broker),
        "## Of topics",
        "`firn topic create --set NAME=VALUE` and `firn topic alter --set NAME=VALUE` change one topic.",
        table(("setting", "default", "bounds", "meaning"), _defined(TOPIC_DEFINITIONS)),
        "## Of groups",
        table(("setting", "default", "bounds", "meaning"), _defined(GROUP_DEFINITIONS)),
        "## Of client metrics",
        table(("setting", "default", "bounds", "meaning"), _defined(CLIENT_METRICS)),
        "## Of Kafka, without effect",
        "Firn accepts these settings and says once that they have no effect.",
        table(("setting", "reason"), [(f"`{name}`", text(reason)) for name, reason in sorted(without.items())]),
    ]
    return joined(parts)


def _defined(definitions: Mapping[str, Definition]) -> Iterator[tuple[str, ...]]:
    for name, one in sorted(definitions.items()):
        default = code(format_value(one.default) or "")
        if one.kafka_default is not None:
            default = f"{default} (Kafka: {code(one.kafka_default)})"
        yield f"`{name}`", default, _bounds(one), text(one.documentation)


def _bounds(one: Definition) -> str:
    if one.choices:
        return ", ".join(code(choice) for choice in one.choices)
    low, high = (
        "" if bound is None else f"{bound:g}" if bound < 1e6 else f"{bound:,.0f}"
        for bound in (one.minimum, one.maximum)
    )
    return f"{low} … {high}".strip() if low or high else ""


def commands_page() -> str:
    """Every command with its arguments and options."""
    parts = ["# Commands", "`firn --help` and `firn COMMAND --help` print the same."]
    for path, command in commands():
        context = command.make_context(path, [], resilient_parsing=True)
        usage = command.get_usage(context).removeprefix("Usage: ").strip()
        records = [found for one in command.params if (found := one.get_help_record(context)) is not None]
        parts += [
            f"## {path}",
            paragraphs(command.help or ""),
            f"```\n{usage}\n```",
            table(
                ("option", "meaning"),
                [(code(name), text(re.sub(r"\s+", " ", help_text))) for name, help_text in records],
            ),
        ]
    return joined(parts)


def commands() -> Iterator[tuple[str, Any]]:
    """Each command with its path (``firn topic create``), in the order of the help."""
    yield from _below("firn", application(()))


def _below(path: str, command: Any) -> Iterator[tuple[str, Any]]:
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, one in command.commands.items():
        if not one.hidden:
            yield from _below(f"{path} {name}", one)


def openapi() -> Mapping[str, Any]:
    """The OpenAPI document of the HTTP process."""
    settings = HttpSettings(bootstrap=(("127.0.0.1", 9092),))
    app = create_app(settings, clock=SystemClock(), rng=random.Random(0), registry=Registry())
    document: Mapping[str, Any] = app.openapi()
    return document


def http_page(document: Mapping[str, Any]) -> str:
    """Every operation of an OpenAPI document, by tag."""
    by_tag: dict[str, list[tuple[str, str, Mapping[str, Any]]]] = {}
    for path, operations in document["paths"].items():
        for method in _METHODS:
            if method in operations:
                tag = (operations[method].get("tags") or ["Other"])[0]
                by_tag.setdefault(tag, []).append((method.upper(), path, operations[method]))
    parts = [
        "# HTTP",
        paragraphs(document["info"].get("description", "")),
        "A running broker shows this page with the schemas of bodies at `/docs`, and the OpenAPI document at `/openapi.json`.",
    ]
    for tag, operations in by_tag.items():
        parts.append(f"## {tag}")
        for method, path, operation in operations:
            parameters = [
                (
                    code(one["name"]),
                    one["in"],
                    text(str(one.get("description") or one.get("schema", {}).get("type", ""))),
                )
                for one in operation.get("parameters", [])
            ]
            answers = [
                (code(status), text(one.get("description", ""))) for status, one in operation["responses"].items()
            ]
            parts += [
                f"### {method} `{path}`",
                text(operation.get("summary", "")) + ".",
                paragraphs(operation.get("description", "")),
                table(("parameter", "in", "meaning"), parameters),
                table(("status", "meaning"), answers),
            ]
    return joined(parts)


def protocol_page() -> str:
    """Every API with the versions that brokers serve, and the features."""
    rows = [
        (str(int(key)), text(camel(key.name)), str(low) if low == high else f"{low}–{high}")
        for key, (low, high) in sorted(SERVED.items())
    ]
    public = [row for row in rows if int(row[0]) < PRIVATE_FROM]
    private = [row for row in rows if int(row[0]) >= PRIVATE_FROM]
    return joined(
        [
            "# Kafka protocol",
            "The APIs and versions that brokers serve. `ApiVersions` of a broker says the same, with the levels of its cluster.",
            table(("key", "API", "versions"), public),
            "## Features",
            "`firn cluster features` shows the levels of a cluster. `firn.version` is Firn's own. "
            "The others are always at one level.",
            table(("feature", "level"), [(code(name), str(level)) for name, level in OF_PROTOCOL.items()]),
            "## Private APIs",
            "For processes of Firn only. Their payloads have versions of their own.",
            table(("key", "API", "versions"), private),
        ]
    )


def error_codes_page() -> str:
    """Every error code with its response over HTTP."""
    rows = [
        (
            str(int(one)),
            code(one.name),
            "yes" if one in RETRIABLE else "",
            " ".join(str(part) for part in dict.fromkeys(REST_CODE.get(one, ()))),
        )
        for one in sorted(ErrorCode)
    ]
    return joined(
        [
            "# Error codes",
            "Kafka's error codes. A client may retry a request after a retriable one. The last column has the status and "
            "`error_code` of REST v3, where they are not general.",
            table(("code", "name", "retriable", "HTTP"), rows),
            "## Exit codes of commands",
            table(
                ("code", "meaning"),
                [
                    ("0", "done"),
                    ("1", "the request failed, and the last line says why"),
                    ("2", "a flag, a setting or an address is wrong"),
                    ("3", "`firn drain`: records of tiered topics may be on the broker's disk only"),
                    (
                        "4",
                        "moves: some partitions were refused or cannot be moved; `firn cluster place`: no such broker",
                    ),
                    ("130", "Ctrl-C stopped it"),
                    ("143", "SIGTERM ended a job"),
                ],
            ),
        ]
    )


def error_messages_page(messages: Sequence[Message]) -> str:
    """Every error message by the package that says it. Placeholders are in braces."""
    parts = [
        "# Error messages",
        "Messages that users see: in responses, in logs, and from commands. A part in braces stands for a value. To find a "
        "message, search for a few of its words that are no names.",
    ]
    by_package: dict[str, set[str]] = {}
    for one in messages:
        package = "/".join(one.file.split("/")[:2]).removesuffix(".py")
        by_package.setdefault(package, set()).add(_placeholders(one.text))
    for package, sentences in sorted(by_package.items()):
        parts += [f"## {package}", "\n".join(f"- {text(one)}" for one in sorted(sentences))]
    return joined(parts)


def _placeholders(sentence: str) -> str:
    """Each placeholder by the last name of its expression: ``{error.topic_name}`` is ``{topic name}``."""
    return re.sub(
        r"\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\}", lambda found: f"{{{_name(found[0])}}}", re.sub(r"\s+", " ", sentence)
    ).strip()


def _name(expression: str) -> str:
    names = re.findall(r"[A-Za-z_]\w*", re.sub(r"'[^']*'", "", expression))
    return names[-1].strip("_").replace("_", " ").lower() if names else "…"


def camel(name: str) -> str:
    """The name of an API as Kafka writes it."""
    return "".join(part.capitalize() for part in name.split("_"))


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; empty if it has no rows."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    if not lines:
        return ""
    return "\n".join([f"| {' | '.join(head)} |", "|" + "---|" * len(head), *lines])


def code(value: str) -> str:
    """A value as code, in a cell of a table."""
    return f"`{value}`".replace("|", "\\|") if value else ""


def text(prose: str) -> str:
    """Prose of the code in a cell or a line: characters that Markdown reads are kept as they are, outside of code."""
    pieces = re.sub(r"\s+", " ", prose).strip().replace("``", "`").split("`")
    if len(pieces) % 2 == 0:
        return re.sub(r"([\\`*_<>\[\]|])", r"\\\1", prose)
    return "".join(
        code(piece) if number % 2 else re.sub(r"([\\*_<>\[\]|])", r"\\\1", piece) for number, piece in enumerate(pieces)
    )


def paragraphs(prose: str) -> str:
    return "\n\n".join(text(block) for block in prose.replace("\b", "").strip().split("\n\n"))


def joined(parts: Iterable[str]) -> str:
    return "\n\n".join(part for part in parts if part and part != ".") + "\n"
