"""Broken links of a built site, and parts that its pages load from elsewhere.

The generator checks links of its sources, too. This check reads the pages as a browser gets them, so it depends on no generator.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

_LOADS: Final = {"script": "src", "img": "src", "iframe": "src", "source": "src", "link": "href"}
_LOADED_LINKS: Final = {"stylesheet", "icon", "preload", "preconnect", "modulepreload", "manifest"}


class _Page(HTMLParser):
    """Anchors, links and loaded parts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if "id" in given:
            self.anchors.add(given["id"])
        if tag == "a" and "href" in given:
            self.links.append(given["href"])
        name = _LOADS.get(tag)
        if name in given and (tag != "link" or _LOADED_LINKS & set(given.get("rel", "").split())):
            self.loaded.append(given[name])


def faults(site: Path) -> Iterator[str]:
    """A sentence for each link to a page, file or anchor that is not there, and for each part that is loaded from elsewhere."""
    pages = {
        path.relative_to(site).as_posix(): _Page(path.read_text(encoding="utf-8"))
        for path in sorted(site.rglob("*.html"))
    }
    for name, page in pages.items():
        for target in page.loaded:
            if urlsplit(target).netloc:
                yield f"{name} loads {target}: put it into the site."
            elif not target.startswith("data:") and not (site / _path(name, target)).exists():
                yield f"{name} loads {target}, which is not there."
        for target in page.links:
            if urlsplit(target).scheme or urlsplit(target).netloc:
                continue
            there = _path(name, target)
            anchor = unquote(urlsplit(target).fragment)
            if (site / there).is_dir():
                there = posixpath.normpath(posixpath.join(there, "index.html"))
            if not (site / there).exists():
                yield f"{name} has a link to {target}, which is not there."
            elif anchor and there in pages and anchor not in pages[there].anchors:
                yield f"{name} has a link to {target}: the page has no such anchor."


def _path(page: str, target: str) -> str:
    path = unquote(urlsplit(target).path)
    if path.startswith("/"):
        return posixpath.normpath(path.lstrip("/") or ".")
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), path)) if path else page
