"""The bill in each example's README is what ``firn cost`` prints, for as much as is planned."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from app.cli import main
from tools.infra import terraform_checks
from tools.infra.program_checks import check_bills
from tools.infra.terraform_checks import Resource

EXAMPLES = Path(__file__).parents[3] / "infra" / "terraform" / "examples"
NAMES = ("single-broker", "existing-vpc", "three-zones", "object-durability", "scale-to-zero")
WITHOUT_VOLUMES = ("object-durability", "scale-to-zero")


@pytest.mark.parametrize("name", NAMES)
def test_the_bill_of_an_example_is_what_the_program_prints(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = (EXAMPLES / name / "README.md").read_text()
    shown = re.search(r"```\n\$ firn (cost [^\n]*)\n(.*?)```", text, re.DOTALL)
    assert shown is not None, "the README shows no bill"
    command, told = shown.groups()
    assert main(shlex.split(command)) == 0
    printed = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    assert printed[: len(told.splitlines())] == [line.rstrip() for line in told.splitlines()]


def planned(**changed: dict[str, int]) -> terraform_checks.Tested:
    """Runs that plan what the READMEs count, but for what ``changed`` says of an example (``-`` is ``_`` in its name)."""
    around = {"load_balancer": 1, "endpoint": 8, "nat": 0, "key": 1, "metric": 16, "alarm": 13, "http_machine": 0}
    of = {
        "single-broker": around,
        "existing-vpc": around | {"endpoint": 0, "key": 0},
        "three-zones": around
        | {"load_balancer": 0, "metric": 64, "alarm": 55, "http_machine": 3, "http_load_balancer": 1},
        "object-durability": around | {"load_balancer": 0, "endpoint": 7, "metric": 19, "alarm": 16},
        "scale-to-zero": around | {"load_balancer": 0, "endpoint": 7, "metric": 19, "alarm": 15},
    }
    tested = terraform_checks.Tested()
    for name, bill in of.items():
        run = f"examples/{name}, tests/example.tftest.hcl it_is_planned"
        tested.outputs.append((run, {"bill": bill | changed.get(name.replace("-", "_"), {})}))
        size = {"three-zones": 500}.get(name, 100)
        if name in WITHOUT_VOLUMES:
            continue
        tested.resources.append(Resource(run, "module.firn.aws_ebs_volume.data", "aws_ebs_volume", {"size": size}))
    return tested


def test_the_bill_of_an_example_counts_what_is_planned() -> None:
    assert check_bills(EXAMPLES.parent, planned()) == []
    told = [
        str(one) for one in check_bills(EXAMPLES.parent, planned(scale_to_zero={"alarm": 13}, existing_vpc={"nat": 1}))
    ]
    assert told == [
        "bills: examples/existing-vpc/README.md: the bill counts 0 of nat, and 1 are planned",
        "bills: examples/scale-to-zero/README.md: the bill counts 15 of alarm, and 13 are planned",
    ]


def test_an_example_without_a_planned_bill_is_found() -> None:
    told = [str(one) for one in check_bills(EXAMPLES.parent, terraform_checks.Tested())]
    assert told == [
        f"bills: examples/{name}: has no bill in its README, or no run that plans the output `bill`"
        for name in sorted(NAMES)
    ]
