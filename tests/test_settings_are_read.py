"""Every setting, option and flag that is accepted is read by some part of the program, or says that it has no effect."""

from __future__ import annotations

import ast
import dataclasses
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from app.configs import BrokerConfig, TopicConfig
from app.configs.broker_definitions import BROKER_DEFINITIONS
from app.configs.group_bounds import GROUP_BOUNDS
from app.configs.topic_definitions import TOPIC_DEFINITIONS
from app.metadata.changes import group_configs
from app.objectstore.location import S3Location
from tools.source_trees import tree_of

ROOT = Path(__file__).parents[1]
TABLES = ("app/configs/", "app/settings.py")
"""Where settings are defined, checked and described. What is read nowhere else has no effect."""


def sources(*under: str) -> Iterator[Path]:
    for place in under:
        path = ROOT / place
        yield from (path,) if path.is_file() else sorted(path.rglob("*.py"))


def read_in(paths: Iterable[Path]) -> frozenset[str]:
    """Attributes and names that are read, and texts that name an attribute."""
    found = set()
    for path in paths:
        for node in ast.walk(tree_of(path)):
            match node:
                case ast.Attribute(attr=name, ctx=ast.Load()) | ast.Name(id=name, ctx=ast.Load()):
                    found.add(name)
                case ast.Constant(value=str(name)) if name.isidentifier():
                    found.add(name)
    return frozenset(found)


@cache
def read_by_the_program() -> frozenset[str]:
    outside = (path for path in sources("app") if not str(path.relative_to(ROOT)).startswith(TABLES))
    return read_in(outside)


def unread(fields: Iterable[str], read: frozenset[str]) -> list[str]:
    return sorted(name for name in fields if name not in read)


def names_of(kind: type) -> set[str]:
    return {field.name for field in dataclasses.fields(kind)}


def test_every_setting_of_a_topic_is_read_or_says_that_it_has_no_effect() -> None:
    idle = {definition.field for definition in TOPIC_DEFINITIONS.values() if definition.idle}
    # Effective values of these are properties of TopicConfig.
    derived = {"local_retention_ms", "local_retention_bytes"}
    assert {f"{name}_effective" for name in derived} <= read_by_the_program()
    assert unread(names_of(TopicConfig) - idle - derived, read_by_the_program()) == []
    assert unread(idle, read_by_the_program()) == sorted(idle), "what is read has an effect"


def test_every_setting_of_a_broker_is_read() -> None:
    bounds = {name.replace(".", "_") for bound in GROUP_BOUNDS for name in (bound.least, bound.most)}
    assert {"check_within", "clamped"} <= read_by_the_program()
    # Not a setting: what was set aside with a warning.
    assert unread(names_of(BrokerConfig) - bounds - {"without_effect"}, read_by_the_program()) == []
    assert not any(definition.idle for definition in BROKER_DEFINITIONS.values())


def test_every_setting_of_a_group_is_read() -> None:
    constants = {
        value: name for name, value in vars(group_configs).items() if name.isupper() and isinstance(value, str)
    }
    read = read_by_the_program()
    of_groups = read_in(sources("app/groups", "app/handlers"))
    for name, definition in group_configs.GROUP_DEFINITIONS.items():
        if definition.field:
            assert definition.field in read, name
        else:
            assert constants[name] in of_groups, name


@pytest.mark.parametrize(
    ("module", "kind"),
    [
        ("pyspark_firn/options.py", "ReadOptions"),
        ("pyspark_firn/options.py", "Subscription"),
        ("pyspark_firn/writing.py", "WriteOptions"),
        ("pyspark_firn/jobs/replay.py", "ReplayRequest"),
    ],
)
def test_every_option_of_spark_and_its_jobs_is_read(module: str, kind: str) -> None:
    [found] = [
        node for node in ast.walk(tree_of(ROOT / module)) if isinstance(node, ast.ClassDef) and node.name == kind
    ]
    fields = [
        node.target.id for node in found.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
    assert len(fields) > 2
    attributes = {
        node.attr
        for path in sources("pyspark_firn")
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load)
    }
    assert unread(fields, frozenset(attributes)) == []


def test_every_option_of_a_store_address_is_read() -> None:
    assert unread(names_of(S3Location), read_in(sources("app/objectstore/s3.py"))) == []


def flags() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef, str]]:
    """Every parameter of every command: functions of ``app/cli`` whose parameters are typer's."""
    for path in sources("app/cli"):
        aliases = {"Json", "Bootstrap"}
        for node in tree_of(path).body:
            match node:
                case ast.Assign(targets=[ast.Name(id=alias)], value=value) if "typer." in ast.unparse(value):
                    aliases.add(alias)
        for node in tree_of(path).body:
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            for argument in (*node.args.args, *node.args.kwonlyargs):
                annotation = ast.unparse(argument.annotation) if argument.annotation is not None else ""
                # A flag with a callback, like --version, has its effect there.
                if ("typer." in annotation or annotation in aliases) and "callback=" not in annotation:
                    yield f"{path.name}:{node.name}", node, argument.arg


def test_every_flag_of_a_command_is_read() -> None:
    found = list(flags())
    assert len(found) > 100
    unused = [
        f"{where}({name})"
        for where, function, name in found
        if not any(isinstance(node, ast.Name) and node.id == name for one in function.body for node in ast.walk(one))
    ]
    assert unused == []
