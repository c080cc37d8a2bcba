"""Which document of the repository is which page of the site, and how a document is rewritten for it. Pure.

Documents are written for GitHub: their links are paths in the repository, and their lists follow CommonMark. The generator reads
Python-Markdown, and only pages of the site.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Set
from typing import Final

HOME: Final = "docs/README.md"
FRONT: Final = "README.md"
"""The repository's own first page. It is no page of the site: links to it lead to the home page."""
_PAGES: Final = {
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",  # docs/security.md is another page
    "infra/README.md": "terraform.md",
    "infra/terraform/README.md": "terraform-modules.md",
    "infra/kubernetes/README.md": "kubernetes.md",
    "infra/monitoring/README.md": "monitoring.md",
    "loadtests/README.md": "measurements.md",
    "loadtests/RESULTS.md": "results.md",
    "tests/README.md": "tests.md",
}
"""Pages by documents outside of ``docs/``."""
_FOLDER: Final = "infra/"
"""Its other documents are pages, too."""
_FENCE: Final = re.compile(r" *(```+|~~~+)")
_LINK: Final = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\]]*\])*)\]\((?P<target>[^()\s]+)\)")
_ITEM: Final = re.compile(r"(?P<indent> *)(?P<mark>[-*]|\d+\.)(?P<gap> +)(?=\S)")
_INDENT: Final = 4


class BrokenLink(Exception):
    """A document has a link to a file that is not in the repository. The text is a sentence."""


def page_of(document: str) -> str | None:
    """The path of a document's page among the site's sources; None if it has none. ``document``: a path in the repository."""
    if document.startswith("docs/"):
        path = document.removeprefix("docs/")
    elif document in _PAGES or document.startswith(_FOLDER):
        path = _PAGES.get(document, document)
    else:
        return None
    folder, name = posixpath.split(path)
    return posixpath.join(folder, "index.md") if name == "README.md" else path


def slug(text: str, separator: str) -> str:
    """The anchor of a heading, as GitHub makes it: one link works in both places. ``separator``: in place of a space."""
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", separator)


def slugs() -> Callable[[str, str], str]:
    """``slug``, as the generator asks for it."""
    return slug


def for_site(document: str, text: str, *, documents: Set[str], files: Set[str], made: Mapping[str, str]) -> str:
    """The source of the page of a document.

    Args:
        documents: the documents that are pages, as paths in the repository.
        files: all files of the repository.
        made: pages that are made from the code: title by path among the site's sources. A document cannot link to them, because
            they are not in the repository. The index of their folder lists them.

    Raises: BrokenLink.
    """
    page = page_of(document)
    if page is None:
        raise AssertionError(f"{document} is no page")
    lines = _lists_of_python_markdown(text.splitlines())
    linked = "\n".join(
        line if fenced else _LINK.sub(lambda found: _link(found, document, page, documents, files), line)
        for line, fenced in _with_fences(lines)
    )
    listed = [
        f"- [{title}]({posixpath.relpath(path, posixpath.dirname(page) or '.')})"
        for path, title in made.items()
        if posixpath.join(posixpath.dirname(path), "index.md") == page
    ]
    return "\n".join([linked, *(["", *listed] if listed else [])]) + "\n"


def _link(found: re.Match[str], document: str, page: str, documents: Set[str], files: Set[str]) -> str:
    target, text = found["target"], found["text"]
    if "://" in target or target.startswith(("#", "mailto:")):
        return found[0]
    path, hash_mark, anchor = target.partition("#")
    file = posixpath.normpath(posixpath.join(posixpath.dirname(document), path))
    if f"{file}/README.md" in files:
        file = f"{file}/README.md"
    if file == FRONT:
        file, hash_mark, anchor = HOME, "", ""
    here = posixpath.dirname(page) or "."
    there = page_of(file) if file in documents else None
    if there is not None:
        return f"{found['image']}[{text}]({posixpath.relpath(there, here)}{hash_mark}{anchor})"
    if file.startswith("docs/") and file in files:
        return f"{found['image']}[{text}]({posixpath.relpath(file.removeprefix('docs/'), here)})"
    if file in files or any(one.startswith(f"{file}/") for one in files):
        return f"`{file}`" if text.strip("`") in (file, path) else f"{text} (`{file}`)"
    raise BrokenLink(f"{document} has a link to {target}, which is not in the repository. Mend the link.")


def _with_fences(lines: list[str]) -> Iterator[tuple[str, bool]]:
    """Each line, and whether it belongs to a block of code."""
    fence = ""
    for line in lines:
        opened = _FENCE.match(line)
        if fence:
            yield line, True
            if opened and opened[1].startswith(fence) and not line.strip().strip("`~"):
                fence = ""
        elif opened:
            fence = opened[1]
            yield line, True
        else:
            yield line, False


def _lists_of_python_markdown(lines: list[str]) -> list[str]:
    """Indent content of lists by four columns a level, and begin each list after an empty line. CommonMark asks for neither."""
    written: list[str] = []
    columns: list[int] = []
    """Of each open item, the column at which its content begins in the document."""
    blank = True
    for line, fenced in _with_fences(lines):
        if not line.strip():
            written.append(line)
            blank = True
            continue
        indent = len(line) - len(line.lstrip())
        item = None if fenced else _ITEM.match(line)
        while columns and indent < columns[-1] and (item is not None or blank or fenced):
            columns.pop()
        if item is not None:
            if not blank and not columns and written and not _ITEM.match(written[-1]) and not _in_list(written):
                written.append("")
            written.append(" " * (_INDENT * len(columns)) + line.lstrip())
            columns.append(item.end())
        elif columns:
            written.append(" " * (_INDENT * len(columns) + max(0, indent - columns[-1])) + line.lstrip())
        else:
            written.append(line)
        blank = False
    return written


def _in_list(written: list[str]) -> bool:
    """Whether the last paragraph belongs to an item of a list."""
    for line in reversed(written):
        if not line.strip():
            return False
        if _ITEM.match(line):
            return True
    return False
