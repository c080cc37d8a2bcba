"""Build the documentation as a site, and check it.

    python -m tools.docs_site [--output build/docs]

Writes the sources, the settings and the site below the output folder, which it empties first. It uses no network. Exit code 1 if a
link is broken, a page loads a part from elsewhere, or the generator warns.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from tools.docs_site.checking import faults
from tools.docs_site.navigation import NAVIGATION, toml_of
from tools.docs_site.pages import BrokenLink, for_site, page_of
from tools.docs_site.reference import made_pages

ROOT: Final = Path(__file__).resolve().parents[2]
HERE: Final = Path(__file__).resolve().parent
COLOURS: Final = re.compile(r"\x1b\[[0-9;]*m")
"""Of the generator's output, which has them in a pipe, too."""
SHOWN_MAX: Final = 50
"""Faults that are printed."""


class Failed(Exception):
    """The site cannot be built. The text is a sentence."""


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.docs_site", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "build" / "docs", help="the folder to write to")
    options = parser.parse_args(arguments)
    output = options.output.resolve()
    try:
        write_sources(output)
        build(output)
    except (Failed, BrokenLink) as error:
        sys.stderr.write(f"docs: {error}\n")
        return 1
    found = list(faults(output / "site"))
    for fault in found[:SHOWN_MAX]:
        sys.stderr.write(f"docs: {fault}\n")
    if found:
        sys.stderr.write(f"docs: {len(found)} faults\n")
        return 1
    sys.stdout.write(f"The site begins at {output / 'site' / 'index.html'}\n")
    return 0


def repository_files() -> frozenset[str]:
    """Paths of all files in the repository that documents may name. Build outputs and environments are left out."""
    left_out = {".git", ".venv", ".venv-supply", "build", "dist", ".cache", "__pycache__", "node_modules"}
    found: list[str] = []
    for path in ROOT.rglob("*"):
        parts = path.relative_to(ROOT).parts
        if not left_out.intersection(parts) and not any(part.startswith(".") for part in parts[:1]) and path.is_file():
            found.append(path.relative_to(ROOT).as_posix())
    return frozenset(found)


def write_sources(output: Path) -> None:
    """Write the sources of the site and the generator's settings. Raises: BrokenLink, Failed."""
    shutil.rmtree(output, ignore_errors=True)
    source = output / "source"
    files = repository_files()
    documents = frozenset(one for one in files if one.endswith(".md") and page_of(one) is not None)
    clashing = [page for page, count in Counter(page_of(one) for one in documents).items() if count > 1]
    if clashing:
        raise Failed(
            f"Several documents are the page {clashing[0]}. Give one of them another name in tools/docs_site/pages.py."
        )
    made = made_pages()
    titles = {path: _title(text) for path, text in made.items()}
    listed = dict(titles)
    for document in sorted(documents):
        page = page_of(document)
        assert page is not None
        text = (ROOT / document).read_text(encoding="utf-8")
        titles[page] = _title(text)
        _write(source / page, for_site(document, text, documents=documents, files=files, made=listed))
    for path, text in made.items():
        _write(source / path, text)
    shutil.copytree(ROOT / "docs" / "images", source / "images")
    (source / "assets").mkdir()
    shutil.copy(HERE / "firn.css", source / "assets" / "firn.css")
    settings = (HERE / "zensical.toml").read_text(encoding="utf-8")
    _write(output / "zensical.toml", settings.replace('"@navigation@"', toml_of(NAVIGATION, _short(titles))))


def build(output: Path) -> None:
    """Have Zensical write the site. Raises: Failed."""
    if find_spec("zensical") is None:
        raise Failed("Zensical is not installed. Run `make docs`, or `pip install -c constraints.txt zensical`.")
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", str(output / "zensical.toml")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=output, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        told = COLOURS.sub("", done.stdout + done.stderr).partition("Traceback (most recent call last)")[0]
        raise Failed(f"Zensical ended with code {done.returncode}. Its output follows.\n{told}")


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _title(text: str) -> str:
    found = re.search(r"^# (.*)$", text, re.MULTILINE)
    return found[1].strip() if found else ""


def _short(titles: Mapping[str, str]) -> Mapping[str, str]:
    return {path: title.replace("`", "") for path, title in titles.items()}


if __name__ == "__main__":
    sys.exit(main())
