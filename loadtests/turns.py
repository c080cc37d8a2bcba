"""One of the small measurements with this tree and with another commit, in turns: is a change slower than what was before?

    python -m loadtests.turns [--turns 7] 18e0847 micro_connection --rounds 5

Both run with this environment's packages, each from its own folder; the other commit lies in a temporary worktree meanwhile. Lines
that begin alike in both are compared: by the figure after the first "least" or "median", or else by the last column.
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
FIGURE = re.compile(r"(?:least|median)\s+([0-9][0-9.,]*)|([0-9][0-9.,]*)\s*$")


@contextmanager
def worktree(commit: str) -> Iterator[Path]:
    """A folder with the files of ``commit``. Raises: CalledProcessError if there is no such commit."""
    with tempfile.TemporaryDirectory(prefix="firn-turns-") as directory:
        path = Path(directory) / "tree"
        subprocess.run(["git", "-C", HERE, "worktree", "add", "--quiet", "--detach", path, commit], check=True)
        try:
            yield path
        finally:
            subprocess.run(["git", "-C", HERE, "worktree", "remove", "--force", path], check=True)


def figures(output: str) -> dict[str, float]:
    """The figure of each line, by the text before it."""
    found: dict[str, float] = {}
    for line in output.splitlines():
        match = FIGURE.search(line)
        title = line[: match.start()].strip() if match else ""
        if match and title:
            found[title] = float((match[1] or match[2]).replace(",", ""))
    return found


def measure(tree: Path, arguments: list[str]) -> dict[str, float]:
    """Run ``loadtests.<arguments>`` in ``tree``."""
    command = [sys.executable, "-m", f"loadtests.{arguments[0]}", *arguments[1:]]
    return figures(subprocess.run(command, cwd=tree, check=True, stdout=subprocess.PIPE, text=True).stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit", help="what to compare with")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("measurement", nargs=argparse.REMAINDER, help="a module of loadtests and its options")
    options = parser.parse_args()
    if not options.measurement:
        parser.error("name a module of loadtests, such as micro_connection")
    before: dict[str, list[float]] = {}
    now: dict[str, list[float]] = {}
    with worktree(options.commit) as tree:
        for turn in range(options.turns):
            sides = [(tree, before), (HERE, now)]
            for folder, kept in sides if turn % 2 == 0 else reversed(sides):
                for title, figure in measure(folder, options.measurement).items():
                    kept.setdefault(title, []).append(figure)
    print(f"{options.turns} turns, medians; the spread of the ratio of neighbours in brackets")
    for title in before:
        if title in now:
            ratios = sorted(n / b for b, n in zip(before[title], now[title], strict=True) if b)
            was, is_now = statistics.median(before[title]), statistics.median(now[title])
            spread = f"({ratios[0]:.2f} to {ratios[-1]:.2f})" if ratios else ""
            print(
                f"{title:44} {options.commit} {was:9.2f}   now {is_now:9.2f}   {statistics.median(ratios):.2f} x {spread}"
            )


if __name__ == "__main__":
    main()
