"""The site of the documentation: it can be built, its links lead somewhere, and the reference names all that the code has."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app.configs.topic_definitions import TOPIC_DEFINITIONS
from app.core.errors import ErrorCode
from app.settings import catalogue
from app.wire.versions import SERVED
from tools.docs_site.__main__ import main
from tools.docs_site.checking import faults
from tools.docs_site.pages import BrokenLink, for_site, page_of, slug
from tools.docs_site.reference import camel, commands, http_page, made_pages, openapi, text

ROOT = Path(__file__).parents[2]


@pytest.mark.ci
def test_the_site_is_built_without_a_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--output", str(tmp_path / "docs")]) == 0, capsys.readouterr().err
    home = (tmp_path / "docs" / "site" / "index.html").read_text()
    assert "Firn's documentation" in home.replace("&rsquo;", "'").replace("’", "'").replace("&#39;", "'")
    assert (tmp_path / "docs" / "site" / "reference" / "settings" / "index.html").exists()


@pytest.fixture(scope="module")
def reference() -> dict[str, str]:
    return dict(made_pages())


def first_cells(page: str) -> set[str]:
    return set(re.findall(r"^\| `?([^`|]+?)`? \|", page, re.MULTILINE))


@pytest.mark.ci
def test_the_reference_names_each_setting_command_api_and_code(reference: dict[str, str]) -> None:
    assert {*catalogue(), *TOPIC_DEFINITIONS} <= first_cells(reference["reference/settings.md"])
    paths = {path for path, _ in commands()}
    assert paths == set(re.findall(r"^## (firn .*)$", reference["reference/commands.md"], re.MULTILINE))
    assert {"firn serve", "firn topic create", "firn cluster drain"} <= paths
    protocol = reference["reference/protocol.md"]
    for key, (low, high) in SERVED.items():
        versions = str(low) if low == high else f"{low}–{high}"
        assert f"| {int(key)} | {camel(key.name)} | {versions} |" in protocol
    assert {str(int(one)) for one in ErrorCode} <= first_cells(reference["reference/error-codes.md"])
    assert "did not respond within" in reference["reference/error-messages.md"]


def test_the_reference_names_each_operation_of_http() -> None:
    document = openapi()
    page = http_page(document)
    named = set(re.findall(r"^### ([A-Z]+) `(.*)`$", page, re.MULTILINE))
    there = {
        (method.upper(), path)
        for path, operations in document["paths"].items()
        for method in operations
        if method in ("get", "post", "put", "patch", "delete")
    }
    assert named == there
    assert len(named) > 80


def shown(text: str, document: str = "docs/one.md") -> str:
    files = frozenset(
        {
            "README.md",
            "docs/README.md",
            "docs/one.md",
            "docs/adr/README.md",
            "infra/README.md",
            "app/cost/bill.py",
            "docs/images/a.png",
        }
    )
    documents = frozenset(one for one in files if one.endswith(".md") and page_of(one))
    return for_site(document, text, documents=documents, files=files, made={})


@pytest.mark.parametrize(
    ("written", "of_site"),
    [
        ("[a](adr/README.md#x)", "[a](adr/index.md#x)"),
        ("[a](adr/)", "[a](adr/index.md)"),
        ("[a](../infra/README.md)", "[a](terraform.md)"),
        ("[a](../README.md)", "[a](index.md)"),
        ("[a](#here)", "[a](#here)"),
        ("[a](https://a.example/x)", "[a](https://a.example/x)"),
        ("[the bill](../app/cost/bill.py)", "the bill (`app/cost/bill.py`)"),
        ("[`app/cost/bill.py`](../app/cost/bill.py)", "`app/cost/bill.py`"),
        ("[costs](../app/cost)", "costs (`app/cost`)"),
        ("![a](images/a.png)", "![a](images/a.png)"),
        ("```\n[a](none.md)\n```", "```\n[a](none.md)\n```"),
    ],
)
def test_links_of_the_repository_become_links_of_the_site(written: str, of_site: str) -> None:
    assert shown(written) == f"{of_site}\n"


def test_a_page_in_a_folder_links_upwards() -> None:
    assert shown("[a](../one.md) [b](../images/a.png)", "docs/adr/README.md") == "[a](../one.md) [b](../images/a.png)\n"


def test_a_link_to_a_file_that_is_not_there_is_refused() -> None:
    with pytest.raises(BrokenLink, match=r"docs/one\.md has a link to two\.md, which is not in the repository"):
        shown("[a](two.md)")


@pytest.mark.parametrize(
    ("written", "of_site"),
    [
        ("- a\n  - b\n    - c\n- d", "- a\n    - b\n        - c\n- d"),
        ("1. a\n   - b\n2. c", "1. a\n    - b\n2. c"),
        ("text\n- a", "text\n\n- a"),
        ("- a\n  goes on\n- b", "- a\n    goes on\n- b"),
        ("1. a\n\n   ```sh\n   b\n     c\n   ```\n\nend", "1. a\n\n    ```sh\n    b\n      c\n    ```\n\nend"),
        ("- a\n\ntext", "- a\n\ntext"),
        ("```\n- a\n  - b\n```", "```\n- a\n  - b\n```"),
    ],
)
def test_lists_are_indented_as_the_generator_wants_them(written: str, of_site: str) -> None:
    assert shown(written) == f"{of_site}\n"


@pytest.mark.parametrize(
    ("heading", "anchor"),
    [
        ("Where do I look for …", "where-do-i-look-for-"),
        ("Segment manifest (topics/<topic-id>/<partition>/)", "segment-manifest-topicstopic-idpartition"),
        ("Fetch 4–18, and more", "fetch-418-and-more"),
    ],
)
def test_anchors_are_those_of_github(heading: str, anchor: str) -> None:
    assert slug(heading, "-") == anchor


def test_prose_of_the_code_keeps_its_characters() -> None:
    assert text("a <b> c_d | `e_f|g` ``h``") == "a \\<b\\> c\\_d \\| `e_f\\|g` `h`"


PAGE = '<h2 id="there">x</h2><a href="{href}">y</a><script src="{source}"></script>'


@pytest.mark.parametrize(
    ("href", "source", "fault"),
    [
        ("../two/#there", "../a.js", None),
        ("../two/#gone", "../a.js", "one/index.html has a link to ../two/#gone: the page has no such anchor."),
        ("../three/", "../a.js", "one/index.html has a link to ../three/, which is not there."),
        ("https://a.example/", "../b.js", "one/index.html loads ../b.js, which is not there."),
        ("#there", "https://a.example/a.js", "one/index.html loads https://a.example/a.js: put it into the site."),
        ("#there", "//a.example/a.js", "one/index.html loads //a.example/a.js: put it into the site."),
    ],
)
def test_broken_links_and_parts_from_elsewhere_are_found(
    tmp_path: Path, href: str, source: str, fault: str | None
) -> None:
    (tmp_path / "a.js").touch()
    for name, page in {"one": PAGE.format(href=href, source=source), "two": '<h2 id="there">x</h2>'}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.html").write_text(page)
    assert list(faults(tmp_path)) == ([] if fault is None else [fault])
