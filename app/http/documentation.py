"""The page at ``/docs``: the OpenAPI document as plain HTML that loads nothing else.

Brokers run in private networks; a page that loads a viewer from elsewhere would stay blank there. ``/openapi.json`` is the
machine's version of the same.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping
from html import escape
from typing import Any, Final

from app.http.asked_once import AskedOnce

_METHODS: Final = ("get", "post", "put", "patch", "delete")

_STYLE: Final = """
:root { color-scheme: light dark; --line: #8884; --quiet: #888; --chip: #8882; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h1 { margin-bottom: 0; } h2 { margin-top: 2.5rem; border-bottom: 1px solid var(--line); }
code, pre { font: 0.9em/1.45 ui-monospace, monospace; }
pre { background: var(--chip); padding: .75rem 1rem; border-radius: .4rem; overflow-x: auto; }
details { border: 1px solid var(--line); border-radius: .4rem; margin: .5rem 0; padding: .4rem .8rem; }
summary { cursor: pointer; display: flex; gap: .8rem; align-items: baseline; flex-wrap: wrap; }
summary::-webkit-details-marker { display: none; }
.method { font-weight: 700; font-size: .8em; min-width: 4rem; text-align: center; border-radius: .3rem; color: #fff; }
.get { background: #1769aa; } .post { background: #2e7d32; } .put, .patch { background: #b26a00; } .delete { background: #b3261e; }
.quiet { color: var(--quiet); } td, th { text-align: left; padding: .15rem 1rem .15rem 0; vertical-align: top; }
"""


class Documents:
    """Both forms of the OpenAPI document of a process. They are made in a thread when the first of them is asked for, and kept."""

    def __init__(self, generate: Callable[[], Mapping[str, Any]]) -> None:
        """``generate``: makes the document, in some 100 ms of CPU time."""
        self._generate = generate
        self._asked: AskedOnce[tuple[bytes, bytes]] = AskedOnce(lambda: asyncio.to_thread(self._make), keeps=False)
        self._made: tuple[bytes, bytes] | None = None

    async def html(self) -> bytes:
        """The page at ``/docs``."""
        return (await self._both())[0]

    async def json(self) -> bytes:
        """``/openapi.json``."""
        return (await self._both())[1]

    async def _both(self) -> tuple[bytes, bytes]:
        if self._made is None:
            self._made = await self._asked.answer()
        return self._made

    def _make(self) -> tuple[bytes, bytes]:
        document = self._generate()
        return page(document).encode(), json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()


def page(openapi: Mapping[str, Any]) -> str:
    """The whole page for an OpenAPI 3 document."""
    info = openapi["info"]
    return "".join(
        (
            "<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>",
            f"<title>{escape(info['title'])} HTTP API</title><style>{_STYLE}</style>",
            f"<h1>{escape(info['title'])}</h1><p class=quiet>HTTP API, version {escape(info['version'])} · ",
            "<a href=openapi.json>openapi.json</a> · <a href=metrics>metrics</a></p>",
            _paragraphs(info.get("description", "")),
            *_groups(openapi),
            "</html>",
        )
    )


def _groups(openapi: Mapping[str, Any]) -> Iterator[str]:
    groups: dict[str, list[str]] = {}
    for path, operations in openapi["paths"].items():
        for method in _METHODS:
            if method in operations:
                operation = operations[method]
                group = (operation.get("tags") or ["Other"])[0]
                groups.setdefault(group, []).append(_operation(openapi, method, path, operation))
    for name, parts in groups.items():
        yield f"<h2>{escape(name)}</h2>"
        yield from parts


def _operation(openapi: Mapping[str, Any], method: str, path: str, operation: Mapping[str, Any]) -> str:
    parts = [
        f"<details><summary><span class='method {method}'>{method.upper()}</span><code>{escape(path)}</code>"
        f"<span class=quiet>{escape(operation.get('summary', ''))}</span></summary>",
        _paragraphs(operation.get("description", "")),
    ]
    parameters = operation.get("parameters", [])
    if parameters:
        parts.append("<table><tr><th>parameter<th>in<th>what</tr>")
        for parameter in parameters:
            about = parameter.get("description") or parameter.get("schema", {}).get("type", "")
            parts.append(
                f"<tr><td><code>{escape(parameter['name'])}</code><td>{escape(parameter['in'])}<td>{escape(str(about))}"
            )
        parts.append("</table>")
    for media_type, content in operation.get("requestBody", {}).get("content", {}).items():
        parts.append(f"<p>Body, <code>{escape(media_type)}</code>:</p>")
        parts.extend(_json(example) for example in _examples(openapi, content))
    parts.append("</details>")
    return "".join(parts)


def _examples(openapi: Mapping[str, Any], content: Mapping[str, Any]) -> Iterator[Any]:
    """The examples of a body, or else its schema."""
    if "example" in content:
        yield content["example"]
    elif "examples" in content:
        yield from (example.get("value") for example in content["examples"].values())
    elif "schema" in content:
        yield _resolved(openapi, content["schema"])


def _resolved(openapi: Mapping[str, Any], schema: Any) -> Any:
    reference = schema.get("$ref") if isinstance(schema, dict) else None
    if reference is None:
        return schema
    found: Any = openapi
    for step in reference.removeprefix("#/").split("/"):
        found = found[step]
    return found


def _json(value: Any) -> str:
    return f"<pre>{escape(json.dumps(value, indent=2, ensure_ascii=False))}</pre>"


def _paragraphs(text: str) -> str:
    """Text with `code` in back quotes, a paragraph for each block."""
    out = []
    for block in text.strip().split("\n\n"):
        if block:
            pieces = escape(block).split("`")
            out.append("<p>" + "".join(f"<code>{p}</code>" if i % 2 else p for i, p in enumerate(pieces)) + "</p>")
    return "".join(out)
