"""The bill in each example's README is what ``firn cost`` prints."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from app.cli import main

EXAMPLES = Path(__file__).parents[3] / "infra" / "terraform" / "examples"


@pytest.mark.parametrize("name", ["single-broker", "existing-vpc", "three-zones", "scale-to-zero"])
def test_the_bill_of_an_example_is_what_the_program_prints(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = (EXAMPLES / name / "README.md").read_text()
    shown = re.search(r"```\n\$ firn (cost [^\n]*)\n(.*?)```", text, re.DOTALL)
    assert shown is not None, "the README shows no bill"
    command, told = shown.groups()
    assert main(shlex.split(command)) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert printed[: len(told.splitlines())] == [line.rstrip() for line in told.splitlines()]
