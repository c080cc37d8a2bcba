"""Checks error messages: each is a sentence with a capital letter and a full stop.

    python tools/error_sentences.py            the faults of all packages
    python tools/error_sentences.py app/hot    those of one folder

A message names the event, its object and the mend. A program can check its first and its last character only. ``messages`` finds in
the syntax tree:

- arguments of the errors that users see: the tree of ``app/core/errors.py`` and the classes in ``SHOWN``
- arguments beside an ``ErrorCode``, which become a Kafka ``error_message``
- arguments of the functions in ``SAID``, which print for users

``FRAGMENTS`` names the classes whose text is no sentence of its own, each with a reason. The text of an error goes into a longer
sentence by ``clause`` of ``app/core/errors.py``. ``tests/test_error_sentences.py`` holds all this.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from tools.source_trees import tree_of

ROOT: Final = Path(__file__).resolve().parent.parent
PLACES: Final = ("app", "firn_broker", "pyspark_firn", "tools", "infra")
GENERATED: Final = ("app/wire/apis/", "app/coordinator/schemas/")
JOINING: Final = ("app/", "pyspark_firn/")
"""Places that can import ``clause``, and whose errors are sentences that it shortens."""
ERRORS: Final = "FirnError"
"""The root of the tree."""
SHOWN: Final = frozenset(
    {
        "RestError",
        "RestAnswer",
        "Refused",
        "Failed",
        "NotPossible",
        "ToolMissing",
        "SettingsError",
        "FirnAppShadowed",
        "SparkTooOld",
    }
)
"""Further classes whose text is shown as it is."""
SAID: Final = frozenset({"_complain", "_invalid", "_not_allowed", "_refusal"})
"""Functions that print a sentence for the user of a command, or make an error of one."""
BEGINNINGS: Final = frozenset({"storage_error"})
"""Functions that take the first half of a sentence and add the reason."""
FRAGMENTS: Final[Mapping[str, str]] = {
    "ValueError": "a pure parser's reason; its caller knows the setting or the field, and makes the sentence",
    "AssertionError": "a bug of Firn; it is shown with its traceback",
    "OSError": "in the words of the operating system",
    "NotValid": "a reason in a line of the audit log",
    "_Failed": "a cell of the doctor's table",
    "UnsupportedObject": "a reason in a line of the log",
    "SchemaUnreadable": "a cell of a report for Firn's own developers",
    "AwsError": "in the words of AWS; its caller makes the sentence",
    "Unreachable": "a reason; its caller names the service and the mend",
}
"""Classes whose messages are parts of a sentence, and why."""
_NAME: Final = re.compile(r"[a-z][\w-]*(?:[.=/_][\w*{].*|\(\).*)?")
_PROGRAMS: Final = frozenset({"acks", "apt", "blkid", "firn", "pip", "systemctl"})


class Message(NamedTuple):
    """One message in the code."""

    file: str
    line: int
    kind: str
    """The class or function that takes it."""
    text: str
    """Its text, with placeholders in braces."""
    node: ast.expr
    joined: Sequence[str]
    """Names of errors whose text it contains as it is."""


def error_classes(trees: Mapping[str, ast.Module]) -> frozenset[str]:
    """The names of ``FirnError`` and of every class below it."""
    bases: dict[str, set[str]] = {}
    for tree in trees.values():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                bases.setdefault(node.name, set()).update(_last(base) for base in node.bases)
    found = {ERRORS}
    while True:
        more = {name for name, above in bases.items() if above & found} - found
        if not more:
            return frozenset(found)
        found |= more


def text_of(node: ast.expr) -> str | None:
    """The text of a string expression, with its placeholders in braces. None if it is no string literal."""
    match node:
        case ast.Constant(value=str(text)):
            return text
        case ast.JoinedStr(values=values):
            return "".join(
                str(part.value) if isinstance(part, ast.Constant) else f"{{{ast.unparse(_inner(part))}}}"
                for part in values
            )
        case ast.BinOp(left=left, op=ast.Add(), right=right):
            parts = [text_of(side) for side in (left, right)]
            if any(part is not None for part in parts):
                sides = zip(parts, (left, right), strict=True)
                return "".join(f"{{{ast.unparse(side)}}}" if part is None else part for part, side in sides)
    return None


def messages(file: str, tree: ast.Module, errors: frozenset[str]) -> Iterator[Message]:
    """The messages of a module."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        kind = _last(node.func)
        arguments = [*node.args, *(one.value for one in node.keywords if one.arg not in ("reason", "kind", "label"))]
        coded = any(isinstance(one, ast.Attribute) and _last(one.value) == "ErrorCode" for one in arguments)
        if kind in FRAGMENTS or not (kind in errors or kind in SHOWN or kind in SAID or kind in BEGINNINGS or coded):
            continue
        for argument in arguments:
            for each in _choices(argument):
                text = text_of(each)
                if text is not None and " " in text:
                    yield Message(file, each.lineno, kind, text, each, list(_joined(each)))


def fault(message: Message) -> str:
    """The fault in the form of a message; empty for a good one."""
    if not _begins_well(message.text):
        return "it begins in lower case"
    if message.kind in BEGINNINGS:
        return "" if not message.text.endswith(".") else "it ends with a full stop, and the reason follows"
    if not message.text.rstrip().endswith((".", "?")) and not _ends_in_sentence(message):
        return "it has no full stop"
    if ".." in message.text.replace("...", "") and message.text.endswith(".."):
        return "it has two full stops"
    if message.joined and message.file.startswith(JOINING):
        return f"it contains {message.joined[0]} as it is: use clause({message.joined[0]})"
    return ""


def _begins_well(text: str) -> bool:
    first = text.split()[0]
    if not first[0].isalpha() or first[0].isupper():
        return True
    word = re.split(r"[':,;]|\.$", first)[0]
    return word in _PROGRAMS or (_NAME.fullmatch(word) is not None and re.search(r"[.=/_(]", word) is not None)


def _ends_in_sentence(message: Message) -> bool:
    """Whether another sentence follows, in a placeholder, or the output of a program on lines of its own."""
    return re.search(r"(?:\.\s*|\n)\{.*\}$", message.text) is not None


def _choices(node: ast.expr) -> Iterator[ast.expr]:
    if isinstance(node, ast.IfExp):
        yield from _choices(node.body)
        yield from _choices(node.orelse)
    elif isinstance(node, ast.BoolOp):
        for one in node.values:
            yield from _choices(one)
    else:
        yield node


def _inner(part: ast.expr) -> ast.expr:
    return part.value if isinstance(part, ast.FormattedValue) else part


def _joined(node: ast.expr) -> Iterator[str]:
    for part in ast.walk(node):
        if isinstance(part, ast.FormattedValue) and part.conversion == -1 and not _stands_alone(node, part):
            match part.value:
                case ast.Name(id=("error" | "cause" | "failure" | "exc") as name):
                    yield name
                case ast.Call(
                    func=ast.Name(id="str"), args=[ast.Name(id=("error" | "cause" | "failure" | "exc") as name)]
                ):
                    yield name


def _stands_alone(node: ast.expr, part: ast.expr) -> bool:
    """Whether a placeholder begins the text and another sentence follows it."""
    match node:
        case ast.JoinedStr(values=[first, ast.Constant(value=str(rest)), *_]) if first is part:
            return re.match(r" [A-Z]", rest) is not None
    return False


def _last(node: ast.expr) -> str:
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(attr=name):
            return name
    return ""


def trees() -> dict[str, ast.Module]:
    """The syntax tree of every module that is not generated, by its path."""
    return {
        file: tree_of(path)
        for place in PLACES
        for path in sorted((ROOT / place).rglob("*.py"))
        if not (file := path.relative_to(ROOT).as_posix()).startswith(GENERATED)
    }


def all_messages() -> Iterator[Message]:
    """The messages of all packages."""
    found = trees()
    errors = error_classes(found)
    for file, tree in found.items():
        yield from messages(file, tree, errors)


def main(places: Sequence[str]) -> int:
    """Print the faults. Returns the exit code."""
    faulty = [(one, why) for one in all_messages() if one.file.startswith(tuple(places)) and (why := fault(one))]
    for one, why in faulty:
        sys.stdout.write(f"{one.file}:{one.line}: {one.kind}: {why}: {one.text!r}\n")
    sys.stdout.write(f"{len(faulty)} faults\n")
    return 1 if faulty else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] or [""]))
