"""The findings of a check, and the folders of a tree of Terraform modules that it reads."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tools.infra.toolbox import REPOSITORY

MODULES: Final = REPOSITORY / "infra" / "terraform"

_HIDDEN: Final = re.compile(r"(^|/)\.")


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.check}: {self.where}: {self.what}"


def folders(tree: Path) -> list[Path]:
    """The root module, then every other folder of modules below it (inner modules, examples), in the order of their names."""
    return [tree, *sorted({path.parent for path in files(tree, "*.tf")} - {tree})]


def name_of(folder: Path, tree: Path) -> str:
    return "root module" if folder == tree else str(folder.relative_to(tree))


def files(tree: Path, *patterns: str) -> Iterator[Path]:
    """Files of a tree by pattern, without those in hidden folders."""
    for pattern in patterns:
        for path in sorted(tree.rglob(pattern)):
            if path.is_file() and not _HIDDEN.search(str(path.relative_to(tree))):
                yield path


def without_comments(text: str) -> str:
    """HCL with its comments blanked, lines kept. A ``#`` inside a quoted string stays."""
    return "\n".join(_uncommented(line) for line in re.sub(r"/\*.*?\*/", _blank, text, flags=re.DOTALL).split("\n"))


def _blank(match: re.Match[str]) -> str:
    return "\n" * match[0].count("\n")


def _uncommented(line: str) -> str:
    quoted = False
    for at, char in enumerate(line):
        if char == '"' and (at == 0 or line[at - 1] != "\\"):
            quoted = not quoted
        elif not quoted and (char == "#" or line.startswith("//", at)):
            return line[:at]
    return line


def blocks(text: str, kind: str) -> Iterator[tuple[list[str], str]]:
    """The blocks of one kind in HCL without comments, at any depth: their labels, and the text between their braces."""
    for match in re.finditer(rf'^[ \t]*{kind}((?:[ \t]+"[^"\n]*")*)[ \t]*\{{', text, re.MULTILINE):
        depth, at, quoted = 1, match.end(), False
        while depth and at < len(text):
            char = text[at]
            if char == '"' and text[at - 1] != "\\":
                quoted = not quoted
            elif char == "\n":
                quoted = False
            elif not quoted:
                depth += (char == "{") - (char == "}")
            at += 1
        yield re.findall(r'"([^"]*)"', match[1]), text[match.end() : at - 1]
