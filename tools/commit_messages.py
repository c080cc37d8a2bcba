"""Checks commit messages: ``area: imperative`` in at most 72 characters, and a body when code changes.

    python3 tools/commit_messages.py FILE           the message of the commit that is being made (called by the commit-msg hook)
    python3 tools/commit_messages.py --since BASE   every commit since BASE

It needs the standard library only, so the hook works before an environment exists. ``tools/install-hooks.sh`` installs the hook.
``tests/test_commit_messages.py`` checks the commits since ``BASE``.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

BASE: Final = "c2a070ab4ba61798bc7d66d5722407108021c851"
"""The last commit that is not checked."""
PUBLISHED: Final = frozenset(
    {
        "23218ddd0195f30c61db34e7393bbc222fcac13b",
        "c196dcf0b2e0fb5b3e42e0f91c00323ebb15b7e1",
        "9e70945669b7faf6d1ce0cc7d3c2a1c4ecefedbd",
        "3c128fcb1beff4220c5e54ba399fdf829535702e",
        "d2591e316b8ba097e4912a9b7152dece61d4b0f2",
        "fc9eeedb2c68aa9de3a55429298fd3e5ac8ec4b1",
    }
)
"""Later commits with a fault that were published before it was seen. History is not rewritten."""
SUBJECT_CHARS_MAX: Final = 72
_SUBJECT: Final = re.compile(
    r"(?P<area>[a-z0-9_.][A-Za-z0-9_./-]*(?: [A-Za-z0-9_./-]+)?(?:, [A-Za-z0-9_./-]+)*): (?P<text>\S.*)"
)
_VERB: Final = re.compile(r"[a-z][a-z-]*\b")
_NO_IMPERATIVE: Final = re.compile(
    r"(?!(?:need|feed|seed|heed|speed|embed|shed|bleed|breed|exceed|proceed|succeed)$)\w+ed$"
    r"|(?!(?:bring|ring|string|ping|sing|swing)$)\w+ing$"
    r"|(?!(?:focus|discuss|canvas|bias|alias|access|address)$)\w+[^s]s$"
)
_PROSE: Final = re.compile(r"docs/.*|.*\.(?:md|json|png|svg)|LICENSE|\.gitignore|\.dockerignore")
_SCISSORS: Final = re.compile(r"^# -+ >8 -+$", re.MULTILINE)
_BY_GIT: Final = re.compile(r"(?:Merge|fixup!|squash!|amend!) ")
_EXAMPLE: Final = "for example 'replication: fence followers of an older epoch'"


class Commit(NamedTuple):
    """A commit to be checked."""

    name: str
    """Its id."""
    message: str
    files: Sequence[str]
    """Paths that it changes."""


def changes_code(files: Sequence[str]) -> bool:
    """Whether a commit of these files needs a body: one of them is neither a document nor data."""
    return any(_PROSE.fullmatch(file) is None for file in files)


def typed(message: str) -> str:
    """The message without the comments and the diff that git adds to the file that an editor opens."""
    kept = _SCISSORS.split(message, maxsplit=1)[0]
    return "\n".join(line for line in kept.splitlines() if not line.startswith("#")).strip()


def faults(message: str, files: Sequence[str]) -> Iterator[str]:
    """The faults of a message, each as one sentence; none for a good one.

    Args:
        message: as it is stored, without git's comments.
        files: the paths that the commit changes.
    """
    subject, _, rest = message.partition("\n")
    if len(subject) > SUBJECT_CHARS_MAX:
        yield f"The subject has {len(subject)} characters. Shorten it to {SUBJECT_CHARS_MAX}."
    match = _SUBJECT.fullmatch(subject)
    if match is None:
        yield f"The subject is not of the form 'area: imperative'. Begin it with the part that changes, {_EXAMPLE}."
    else:
        word = _VERB.match(match["text"])
        if word is None or _NO_IMPERATIVE.fullmatch(word[0]):
            yield f"The subject does not go on with an imperative in lower case. Write one after the colon, {_EXAMPLE}."
    if rest and rest.split("\n", 1)[0].strip():
        yield "The second line is not empty. Put an empty line between subject and body."
    if not rest.strip() and changes_code(files):
        yield "The commit changes code and its message has no body. Say why in one to five lines."


def since(base: str, root: Path) -> Iterator[Commit]:
    """The commits after ``base`` up to HEAD that are neither merges nor in ``PUBLISHED``, newest first."""
    told = _git(root, "log", "--no-merges", "--name-only", "--format=%x1e%H%x1f%B%x1f", f"{base}..HEAD")
    for entry in told.split("\x1e")[1:]:
        name, message, files = entry.split("\x1f")
        if name not in PUBLISHED:
            yield Commit(name, message.strip(), files.split())


def reason_to_skip(base: str, root: Path) -> str:
    """Why the commits since ``base`` cannot be checked here; empty if they can."""
    try:
        _git(root, "rev-parse", "--verify", "--quiet", f"{base}^{{commit}}")
        _git(root, "merge-base", "--is-ancestor", base, "HEAD")
    except FileNotFoundError:
        return "git is not installed"
    except subprocess.CalledProcessError:
        return f"commit {base[:12]} is not in the history of this checkout (a shallow clone or no clone)"
    return ""


def _git(root: Path, *words: str) -> str:
    return subprocess.run(
        ["git", "-C", str(root), *words], check=True, capture_output=True, text=True, encoding="utf-8"
    ).stdout


def _of_all(base: str, root: Path) -> Iterator[str]:
    for commit in since(base, root):
        for fault in faults(commit.message, commit.files):
            yield f"{commit.name[:12]} {commit.message.splitlines()[0]}: {fault}"


def main(arguments: Sequence[str]) -> int:
    """Checks as the module says. Returns 0 for good messages, 1 for faults and 2 for a wrong call."""
    match arguments:
        case ["--since", base]:
            root = Path.cwd()
            why = reason_to_skip(base, root)
            if why:
                sys.stderr.write(f"Commit messages are not checked: {why}.\n")
                return 0
            found = list(_of_all(base, root))
        case [file]:
            message = typed(Path(file).read_text(encoding="utf-8", errors="replace"))
            if not message or _BY_GIT.match(message):
                return 0  # git itself refuses an empty message, and words merges and the commits of an autosquash
            found = list(faults(message, _git(Path.cwd(), "diff", "--cached", "--name-only").splitlines()))
        case _:
            sys.stderr.write(f"{__doc__}\n")
            return 2
    for fault in found:
        sys.stderr.write(f"{fault}\n")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
