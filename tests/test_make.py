"""What the Makefile gives to the commands that it runs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_commands_keep_their_bytecode_where_the_environment_forbids_it() -> None:
    rule = 'told: ; @echo "set: $${PYTHONDONTWRITEBYTECODE-no}"'
    told = subprocess.run(
        ["make", "--silent", "--no-print-directory", f"--eval={rule}", "told"],
        cwd=ROOT,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert told.stdout == "set: no\n"
