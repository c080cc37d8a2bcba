from __future__ import annotations

import re
from html import unescape
from pathlib import Path

import httpx
import pytest

from app.http.console.console import RUNBOOKS
from app.http.console.texts.runbooks import Block, Piece, pieces_of, runbook_of

HTML = {"accept": "text/html"}
NAMES = sorted(path.stem for path in RUNBOOKS[1].glob("*.md") if path.stem != "README")
TEXT = """# Disk full

Alert: `FirnDiskFull`, `FirnDiskNearlyFull`

No room for
records.

## How to mend it

1. Look with `firn tier status`, or
   see [loops](loop-stalls.md).
2. Read [the decision](../adr/0024-replication.md).

- one

It ends when: <b>never</b>.
"""


def test_a_page_is_headings_paragraphs_and_lists() -> None:
    found = runbook_of("disk-full", TEXT)
    assert (found.name, found.title, found.alert) == ("disk-full", "Disk full", "FirnDiskFull, FirnDiskNearlyFull")
    steps = [
        [
            Piece("Look with "),
            Piece("firn tier status", code=True),
            Piece(", or see "),
            Piece("loops", url="/console/runbooks/loop-stalls"),
            Piece("."),
        ],
        [Piece("Read "), Piece("the decision"), Piece(".")],
    ]
    assert found.blocks == [
        Block("p", [[Piece("No room for records.")]]),
        Block("h2", [[Piece("How to mend it")]]),
        Block("ol", steps),
        Block("ul", [[Piece("one")]]),
        Block("p", [[Piece("It ends when: <b>never</b>.")]]),
    ]
    assert pieces_of("") == []


def words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


@pytest.mark.parametrize("name", NAMES)
async def test_each_runbook_is_a_page_with_all_of_its_words(http: httpx.AsyncClient, name: str) -> None:
    page = (await http.get(f"/console/runbooks/{name}", headers=HTML)).text
    shown = page[page.index('<div class="head">') : page.index("</main>")]
    text = (RUNBOOKS[1] / f"{name}.md").read_text()
    plain = re.sub(r"^\d+\. ", "", re.sub(r"\]\([^)]*\)", "]", text), flags=re.MULTILINE)
    assert words(unescape(re.sub(r"<[^>]*>", " ", shown))) == words(plain)
    assert not re.search(r"[`]|\]\(", shown), "marks of Markdown"
    for linked in re.findall(r'href="/console/runbooks/([^"]+)"', shown):
        assert linked in NAMES


async def test_the_list_leads_to_each_runbook_and_others_are_404(http: httpx.AsyncClient) -> None:
    page = (await http.get("/console/runbooks", headers=HTML)).text
    assert sorted(re.findall(r'<a href="/console/runbooks/([^"]+)">', page)) == NAMES
    for name in ("README", "none", "..%2f..%2fREADME"):
        assert (await http.get(f"/console/runbooks/{name}", headers=HTML)).status_code == 404


def test_a_wheel_has_the_runbooks_where_the_console_looks_first() -> None:
    root = Path(__file__).parents[3]
    hook = (root / "tools" / "build_hook.py").read_text()
    assert f'"{RUNBOOKS[0].relative_to(root)}"' in hook
    assert RUNBOOKS[1] == root / "docs" / "runbooks"
