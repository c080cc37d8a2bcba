"""What the documents name is there: files, functions, settings, flags, make targets, layers, groups of measurements."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from app.configs.environment import environment_name
from app.configs.topic_definitions import TOPIC_DEFINITIONS
from app.configs.without_effect import GROUP_WITHOUT_EFFECT, TOPIC_WITHOUT_EFFECT, broker_setting_without_effect
from app.core.log_events import Event
from app.handlers.serving.dispatch import FAMILIES
from app.metadata.changes.features import OF_PROTOCOL
from app.metadata.changes.group_configs import GROUP_DEFINITIONS
from app.metadata.image.records import LEVEL_FEATURE
from app.settings import ALIASES, catalogue
from app.wire.apikeys import ApiKey
from app.wire.versions import SERVED

ROOT = Path(__file__).parents[1]
CODE = ("app", "pyspark_firn", "firn_broker", "loadtests", "tools", "tests")
DOCUMENTS = sorted(
    path.relative_to(ROOT).as_posix()
    for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), ROOT / "loadtests" / "README.md")
)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
FOREIGN = (
    "spark.", "kafka.", "sys.", "server.properties", "meta.properties", "cluster.id", "directory.id", "segments.parquet",
    "report.html", "s3.", "firn.archive.", "ns.table", "delivery.timeout.ms", "schema.registry.",
    "topic.metadata.refresh.", "v0.1.0", "auto.offset.reset", "auto.commit.enable", "enable.auto.commit", "fetch.min.bytes",
    "consumer.request.timeout.ms", "isolation.level", "org.apache.kafka.", "google.protobuf", "messaging.",
    "http.request.", "http.response.", "http.route", "server.address", "server.port", "service.name",
)  # fmt: skip
"""How dotted names begin that are no settings: of Spark, Python, Iceberg, OpenTelemetry and clients, files, and keys in files."""
OF_OTHERS = {"app.py", "app/", "dist/", "path.properties", "URL/TOPIC_bad/", "_firn/"}
"""Paths that are a user's, or that a job or a build writes."""


def text_of(document: str) -> str:
    return (ROOT / document).read_text()


def quoted(document: str) -> Iterator[str]:
    """What stands between backticks, outside of blocks."""
    for token in re.findall(r"`([^`\n]+)`", FENCED.sub("", text_of(document))):
        yield token.strip()


@cache
def source() -> str:
    paths = (
        path for place in CODE for path in sorted((ROOT / place).rglob("*")) if path.suffix in (".py", ".sh", ".java")
    )
    return "\n".join(path.read_text() for path in paths)


@cache
def words() -> frozenset[str]:
    return frozenset(re.findall(r"\w+", source()))


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_file_that_a_document_names_is_there(document: str) -> None:
    text, folder = text_of(document), (ROOT / document).parent
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert (folder / target).exists(), target
    for token in quoted(document):
        path = token.partition("::")[0]
        if not re.fullmatch(r"[\w*-][\w./*-]*(\.(py|md|sh|txt|toml|java)|/)", path) or path in OF_OTHERS:
            continue
        if document == "docs/formats.md" and path.endswith("/") and not path.startswith(CODE):
            continue  # keys of the store
        found = [
            *ROOT.glob(path),
            *folder.glob(path),
            *(ROOT / "pyspark_firn").glob(path),
            *(ROOT / "app/hot").glob(path),
        ]
        if "/" not in path:
            found += [one for place in CODE for one in (ROOT / place).rglob(path)]
        if re.fullmatch(r"test_\w+\.py", path):
            assert any((ROOT / "tests").rglob(path)), token
        assert found, token
        name = token.partition("::")[2]
        assert not name or f"def {name}(" in found[0].read_text(), token


def known_settings() -> frozenset[str]:
    return frozenset(
        (
            *catalogue(),
            *ALIASES,
            *TOPIC_DEFINITIONS,
            *TOPIC_WITHOUT_EFFECT,
            *GROUP_DEFINITIONS,
            *GROUP_WITHOUT_EFFECT,
            # Features are no settings, but documents name them in the same way.
            LEVEL_FEATURE,
            *OF_PROTOCOL,
        )
    )


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_setting_that_a_document_names_is_known(document: str) -> None:
    known = known_settings() | {one.label for one in Event}
    for token in quoted(document):
        for part in token.split(","):
            match = re.fullmatch(r"([a-z][a-z0-9]*(?:\.[a-z0-9-]+)+)(=.*)?", part)
            if match is None or part.startswith(FOREIGN) or re.search(r"\.(py|md|sh|txt|toml|json|tf|service)$", part):
                continue
            assert match[1] in known or broker_setting_without_effect(match[1]) is not None, token
    variables = {environment_name(name) for name in (*catalogue(), *ALIASES)} | {
        "FIRN_DEBUG",
        "FIRN_BOOTSTRAP",
        "FIRN_CONFIG",
    }
    for variable in re.findall(r"\bFIRN_[A-Z][A-Z_]+\b", text_of(document)):
        assert variable in variables | {"FIRN_KAFKA_LIBS"}, variable


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_flag_and_make_target_that_a_document_names_is_there(document: str) -> None:
    targets = frozenset(re.findall(r"^([a-z0-9-]+):", text_of("Makefile"), re.MULTILINE))
    for target in re.findall(r"\bmake ((?!sure|run system)[a-z][a-z0-9-]+)(?=[`\s\"])", "\n".join(quoted(document))):
        assert target in targets, target
    for token in quoted(document):
        for flag in re.findall(r"(?<![\w-])--[a-z][a-z-]+", token):
            known = any(f"{flag}{end}" in source() for end in ('"', "=", " ", "`"))
            assert known or token.startswith("curl "), token


@pytest.mark.parametrize(
    "document", ["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/proof.md", "docs/formats.md", "docs/spark.md"]
)
def test_every_name_of_the_code_in_a_document_is_in_the_code(document: str) -> None:
    of_kafka = {"MetadataHash", "SnapshotEpoch", "lastProgress", "schemaless", "segment_bytes_max", "table_bad"}
    for token in quoted(document):
        if re.fullmatch(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*(\(\))?", token) and not token.startswith(FOREIGN):
            if (token.rpartition(".")[2]) in ("py", "md", "txt", "toml"):
                continue
            missing = [part for part in token.removesuffix("()").split(".") if part not in words() | of_kafka]
            assert not missing, token


def test_every_api_family_is_held_to_know_nothing_of_the_others() -> None:
    contracts = tomllib.loads(text_of("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    [contract] = [one for one in contracts if one["type"] == "independence"]
    assert set(contract["modules"]) == {"app.handlers.apis.*", "app.handlers.produce", "app.handlers.fetch"}
    families = {path.stem for path in (ROOT / "app" / "handlers" / "apis").glob("*.py")} - {"__init__"}
    assert families == set(FAMILIES)


def layers() -> list[list[str]]:
    contracts = tomllib.loads(text_of("pyproject.toml"))["tool"]["importlinter"]["contracts"]
    [contract] = [one for one in contracts if one["type"] == "layers" and "containers" not in one]
    return [[name.strip() for name in layer.split("|")] for layer in reversed(contract["layers"])]


def test_every_package_has_a_layer_in_the_contract_and_in_the_architecture() -> None:
    """In the same order, so that a line of the list imports only from lines above it."""
    depth = {name: number for number, layer in enumerate(layers()) for name in layer}
    there = {
        f"app.{path.stem}"
        for path in (ROOT / "app").iterdir()
        if (path.suffix == ".py" and path.stem != "__init__") or (path / "__init__.py").exists()
    }
    assert {name for name in depth if name.startswith("app.")} == there
    block = text_of("ARCHITECTURE.md").partition("## Layers")[2].partition("```\n")[2].partition("```")[0]
    lines = [
        [
            match[1].rstrip("/").removesuffix(".py").replace("/", ".")
            for match in re.finditer(r"(?:^|  )((?:app|pyspark_firn|firn_broker)/[\w.]*/?)", line)
        ]
        for line in block.splitlines()
    ]
    named = [(name, number) for number, line in enumerate(lines) for name in line]
    assert {name for name, _ in named if name.startswith("app.")} == there
    numbers = dict(named)
    for name, number in named:
        for other, place in numbers.items():
            if name in depth and other in depth and depth[name] < depth[other]:
                assert number <= place, f"{name} is imported by {other}"


def test_the_laboratorys_page_names_every_module_and_every_group() -> None:
    page = text_of("loadtests/README.md")
    modules = {path.name for path in (ROOT / "loadtests").glob("*.py")} - {"__init__.py"}
    assert {name for name in modules if name not in page} == set()
    tree = ast.parse(text_of("loadtests/workloads/__init__.py"))
    [groups] = [
        [key.value for key in node.value.keys if isinstance(key, ast.Constant)]
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and isinstance(node.value, ast.Dict)
        and "GROUPS" in ast.unparse(node)
    ]
    assert re.findall(r"^\| `([a-z0-9-]+)` \| ", page.partition("## How to read it")[0], re.MULTILINE) == groups


def test_every_decision_is_listed_under_its_title() -> None:
    listed = re.findall(
        r"^\| \[(\d{4})\]\((\d{4}-[\w-]+\.md)\) \| (.*) \|$", text_of("docs/adr/README.md"), re.MULTILINE
    )
    files = sorted(path for path in (ROOT / "docs" / "adr").glob("0*.md"))
    assert [name for _, name, _ in listed] == [path.name for path in files]
    for (number, _, title), path in zip(listed, files, strict=True):
        assert path.read_text().partition("\n")[0].lower() == f"# {number}: {title}".lower()


def test_the_versions_in_the_list_of_features_are_those_served() -> None:
    rows = re.findall(r"^\| (Produce|Fetch|ListOffsets) (\d+)–(\d+) \|", text_of("docs/features.md"), re.MULTILINE)
    keys = {"Produce": ApiKey.PRODUCE, "Fetch": ApiKey.FETCH, "ListOffsets": ApiKey.LIST_OFFSETS}
    first = {"Produce": 3}  # The oldest that is decoded: earlier ones are shown to librdkafka and refused, as by Kafka.
    assert len(rows) == 3
    for name, low, high in rows:
        served = SERVED[keys[name]]
        assert (int(low), int(high)) == (first.get(name, served[0]), served[1]), name


def test_the_private_apis_are_all_in_their_decision() -> None:
    numbers = {int(number) for number in re.findall(r"\b(200\d\d)\b", text_of("docs/adr/0003-private-api-keys.md"))}
    assert numbers == {int(key) for key in ApiKey if key >= 20_000}


def test_every_option_of_spark_is_in_its_page_and_every_one_there_is_an_option() -> None:
    constants: dict[str, tuple[str, ...]] = {}
    for module in ("pyspark_firn/options.py", "pyspark_firn/writing.py"):
        for node in ast.parse(text_of(module)).body:
            if (
                isinstance(node, ast.AnnAssign)
                and isinstance(node.target, ast.Name)
                and isinstance(node.value, ast.Tuple)
            ):
                constants[node.target.id] = ast.literal_eval(node.value)
    page = text_of("docs/spark.md")
    reading = page.partition("## Reading\n")[2].partition("\n## Streaming")[0]
    of_reads = (*constants["BOTH"], *constants["OF_REGISTRY"], *constants["BATCH_ONLY"])
    in_table = [
        name for row in re.findall(r"^\| (`[^|]+) \|", reading, re.MULTILINE) for name in re.findall(r"`([\w.]+)`", row)
    ]
    assert sorted(in_table) == sorted(of_reads)
    for name in (*constants["STREAM_ONLY"], *constants["_OPTIONS"]):
        assert f"`{name}`" in page, name


@cache
def remarks() -> dict[str, str]:
    """Docstrings and comments of the code by file, as far as they name something in backticks."""
    return {
        path.relative_to(ROOT).as_posix(): "\n".join(re.findall(r"``[^`\n]+``|ADR \d{4}", path.read_text()))
        for place in CODE
        for path in sorted((ROOT / place).rglob("*.py"))
        if "wire/apis" not in path.as_posix()
    }


def test_every_file_and_decision_that_the_code_names_is_there() -> None:
    names = {path.name for place in (*CODE, "docs") for path in (ROOT / place).rglob("*")}
    for file, text in remarks().items():
        for path in re.findall(r"``([\w.*/-]+\.(?:py|md|sh))``", text):
            places = (ROOT / path, ROOT / Path(file).parent / path, *ROOT.glob(f"*/{path}"))
            there = path in names or path in OF_OTHERS or any(place.exists() for place in places)
            assert there or any(ROOT.glob(path)), (file, path)
        for number in re.findall(r"ADR (\d{4})", text):
            assert any((ROOT / "docs" / "adr").glob(f"{number}-*")), (file, number)


def test_every_setting_that_the_code_names_is_known() -> None:
    known = known_settings()
    families = {name.split(".")[0] for name in known if "." in name} - {"app", "config", "quota", "client"}
    for file, text in remarks().items():
        if file.startswith(("tests/", "loadtests/")):
            continue
        for name in re.findall(r"``([a-z]+(?:\.[a-z]+)+)(?:=[^`]*)?``", text):
            if name.split(".")[0] in families and name.count(".") > 1 and not name.startswith(FOREIGN):
                of_clients = name in ("group.remote.assignor", "group.instance.id", "max.poll.interval.ms")
                assert of_clients or name in known or broker_setting_without_effect(name) is not None, (file, name)
