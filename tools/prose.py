"""Counts the sentences that use a clause where a noun should stand: what, whoever, whatever, whom, nobody, somebody.

Such sentences have to be read twice. The share of them is counted by package, over docstrings, comments and documents. The ceilings
are in ``tests/prose_ceilings.toml``; ``tests/test_prose.py`` holds them.

    python tools/prose.py                     the share of each package
    python tools/prose.py app/security        its sentences, with their files
    python tools/prose.py --write             lower the ceilings to the present shares
"""

from __future__ import annotations

import ast
import io
import math
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tools.source_trees import tree_of

ROOT: Final = Path(__file__).resolve().parent.parent
CEILINGS: Final = ROOT / "tests" / "prose_ceilings.toml"
WORDS: Final = re.compile(r"\b(what|whoever|whatever|whom|nobody|somebody)\b", re.IGNORECASE)
CODE: Final = ("app", "pyspark_firn", "firn_broker", "tools")
GENERATED: Final = ("app/wire/apis/", "app/coordinator/schemas/")
NOT_OURS: Final = frozenset({"CHANGELOG.md", "loadtests/RESULTS.md"})
"""Not counted: a history, which stays as it was written, and figures that a program writes."""
STEP: Final = 0.5
"""Ceilings are multiples of this many percent, so that a single sentence does not break them."""
CHARS_MIN: Final = 8


class Sentence(NamedTuple):
    """One sentence of prose."""

    file: str
    line: int
    text: str

    @property
    def counts(self) -> bool:
        """Whether it uses one of the words."""
        return WORDS.search(self.text) is not None


class Share(NamedTuple):
    """The sentences of a package."""

    all: Sequence[Sentence]
    found: Sequence[Sentence]

    @property
    def percent(self) -> float:
        return 100 * len(self.found) / len(self.all) if self.all else 0.0


def split(text: str) -> Iterator[tuple[int, str]]:
    """Sentences of a text with the number of their first line, from 0. Code in fences and backticks is left out."""
    block: list[str] = []
    first = 0
    fenced = False
    lines = text.split("\n")
    for number, line in enumerate([*lines, ""]):
        if line.lstrip().startswith("```"):
            fenced = not fenced
            line = ""
        begins = re.match(r"\s*([-*|#>]|\d+\. )", line) is not None
        if block and (not line.strip() or begins or fenced):
            yield from ((first, one) for one in _sentences(" ".join(block)))
            block = []
        if line.strip() and not fenced:
            if not block:
                first = number
            block.append(line.strip().strip("|"))


def _sentences(block: str) -> Iterator[str]:
    plain = re.sub(r"``[^`]*``|`[^`]*`", "CODE", block)
    plain = re.sub(r"\]\([^)]*\)", "]", plain)
    for cell in plain.split(" | "):
        for one in re.split(r"(?<=[.!?;:])\s+", cell):
            if len(one.strip(" -*#|>")) >= CHARS_MIN:
                yield one.strip()


def of_code(path: Path) -> Iterator[tuple[int, str]]:
    """The docstrings and comments of a module, with the number of their first line."""
    source = path.read_text()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, node.value.value
    block, last = [], -2
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != last + 1 and block:
                yield last - len(block) + 1, "\n".join(block)
                block = []
            block.append(token.string.lstrip("#: "))
            last = token.start[0]
    if block:
        yield last - len(block) + 1, "\n".join(block)


def package_of(file: str) -> str:
    """The name under which a file is counted: its package, or the folder of a document."""
    parts = file.split("/")
    if parts[0] in ("app", "docs", "infra"):
        return "/".join(parts[:2]) if len(parts) > 2 else parts[0]
    return parts[0] if len(parts) > 1 else "."


def sentences() -> Iterator[Sentence]:
    """All sentences of docstrings, comments and documents."""
    for place in CODE:
        for path in sorted((ROOT / place).rglob("*.py")):
            file = path.relative_to(ROOT).as_posix()
            if not file.startswith(GENERATED):
                for first, text in of_code(path):
                    yield from (Sentence(file, first + offset, one) for offset, one in split(text))
    documents = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("infra/**/*.md"),
        *ROOT.glob("loadtests/*.md"),
    ]
    for path in sorted(documents):
        file = path.relative_to(ROOT).as_posix()
        if file not in NOT_OURS:
            yield from (Sentence(file, 1 + offset, one) for offset, one in split(path.read_text()))


def shares() -> Mapping[str, Share]:
    """The share of each package."""
    by_package: dict[str, list[Sentence]] = {}
    for one in sentences():
        by_package.setdefault(package_of(one.file), []).append(one)
    return {name: Share(found, [one for one in found if one.counts]) for name, found in sorted(by_package.items())}


def ceilings() -> Mapping[str, float]:
    """The highest share that each package may have, in percent."""
    return {name: float(value) for name, value in tomllib.loads(CEILINGS.read_text())["percent"].items()}


def ceiling_of(percent: float) -> float:
    """The lowest ceiling that leaves room for a share."""
    return max(STEP, math.ceil(percent / STEP) * STEP)


def _write(found: Mapping[str, Share]) -> None:
    before = ceilings() if CEILINGS.exists() else {}
    lines = [
        "# The highest share of sentences with a clause for a noun (tools/prose.py), in percent. It may only fall.",
        "[percent]",
    ]
    for name, share in found.items():
        lines.append(f'"{name}" = {min(ceiling_of(share.percent), before.get(name, 100.0))}')
    CEILINGS.write_text("\n".join(lines) + "\n")


def main(arguments: Sequence[str]) -> int:
    """Print shares, or the sentences of packages; ``--write`` lowers the ceilings."""
    found = shares()
    if arguments == ["--write"]:
        _write(found)
        return 0
    for name in arguments:
        if name not in found:
            sys.stderr.write(f"There is no package {name}. Name one of {', '.join(found)}.\n")
            return 2
        for one in found[name].found:
            sys.stdout.write(f"{one.file}:{one.line}: {one.text}\n")
    for name in arguments or found:
        share = found[name]
        sys.stdout.write(f"{share.percent:5.1f} %  {len(share.found):4} of {len(share.all):5}  {name}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
