"""``app/http/connections.py`` uses parts of uvicorn that are not documented: they are there, and versions are bounded.

To raise the bound, run ``tests/http`` with the new version first.
"""

from __future__ import annotations

import ast
import inspect
import tomllib
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import uvicorn
from packaging.requirements import Requirement
from packaging.version import Version
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from app.http import connections

ROOT = Path(__file__).parents[2]
PARTS = {
    "_unset_keepalive_if_required",
    "app",
    "connection_lost",
    "connection_made",
    "cycle",
    "data_received",
    "flow",
    "headers",
    "loop",
    "on_body",
    "on_headers_complete",
    "on_message_complete",
    "on_response_complete",
    "parser",
    "pause_writing",
    "pipeline",
    "resume_writing",
    "scheme",
    "scope",
    "send_400_response",
    "server",
    "server_state",
    "timeout_keep_alive",
    "timeout_keep_alive_handler",
    "timeout_keep_alive_task",
    "url",
}
"""Attributes of ``HttpToolsProtocol`` that are used or overridden."""


def own_attributes(node: ast.ClassDef) -> Iterator[str]:
    """Names that a class defines itself: methods that call no ``super()`` of their name, annotations, assigned attributes."""
    for inner in node.body:
        match inner:
            case ast.FunctionDef(name=name):
                yield name
            case ast.AnnAssign(target=ast.Name(id=name)):
                yield name
    for part in ast.walk(node):
        match part:
            case (
                ast.Assign(targets=[ast.Attribute(value=ast.Name(id="self"), attr=name)])
                | ast.AnnAssign(target=ast.Attribute(value=ast.Name(id="self"), attr=name))
            ):
                yield name


def used_of_the_base(source: str) -> set[str]:
    [node] = [one for one in ast.parse(source).body if isinstance(one, ast.ClassDef) and one.name == "HttpConnection"]
    base = set(vars(HttpToolsProtocol)) | set(vars(protocol()))
    used, of_super = set(), set()
    for inner in ast.walk(node):
        match inner:
            case ast.Attribute(value=ast.Name(id="self"), attr=name):
                used.add(name)
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name) if name != "__init__":
                of_super.add(name)
    own = set(own_attributes(node))
    return (used - own) | of_super | {name for name in own & base if not name.startswith("__")} - {"transport"}


async def _nothing(scope: object, receive: object, send: object) -> None:
    raise AssertionError("no request is served")


def protocol() -> HttpToolsProtocol:
    """Made as uvicorn's server makes it."""
    config = uvicorn.Config(_nothing, log_config=None)
    config.load()
    return HttpToolsProtocol(config=config, server_state=ServerState(), app_state={})


async def test_the_parts_of_uvicorn_that_connections_use_are_these_and_are_there() -> None:
    assert used_of_the_base(inspect.getsource(connections)) == PARTS
    made = protocol()
    assert {name for name in PARTS if not hasattr(made, name)} == {"url"}
    assert 'self.url = b""' in inspect.getsource(HttpToolsProtocol.on_message_begin)
    assert not made.pipeline
    assert (vars(made)["cycle"], vars(made)["timeout_keep_alive_task"]) == (None, None)
    assert "self.response_complete = False" in inspect.getsource(RequestResponseCycle.__init__)


def test_versions_of_uvicorn_end_behind_the_pinned_one() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [bound] = [one for one in map(Requirement, project["dependencies"]) if one.name == "uvicorn"]
    [pinned] = [
        Version(line.removeprefix("uvicorn=="))
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if line.startswith("uvicorn==")
    ]
    assert bound.specifier.contains(pinned)
    assert bound.specifier.contains(version("uvicorn")), "these tests run with a version that Firn allows"
    assert not bound.specifier.contains(f"{pinned.major}.{pinned.minor + 1}"), "no test ran with the next version"
