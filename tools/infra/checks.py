"""All checks of infra/ by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tools.infra import alert_checks, program_checks, terraform_checks
from tools.infra.findings import Finding
from tools.infra.terraform_checks import Tested
from tools.infra.toolbox import Terraform


@dataclass(slots=True)
class Bench:
    """A tree of modules under check, and its shared parts: Terraform with the stub provider, and one run of the tests."""

    tree: Path
    scratch: Path
    _terraform: list[Terraform] = field(default_factory=list)
    _tested: list[Tested] = field(default_factory=list)

    @property
    def terraform(self) -> Terraform:
        """Raises: ToolMissing."""
        if not self._terraform:
            self._terraform.append(Terraform(self.tree, self.scratch))
        return self._terraform[0]

    @property
    def tested(self) -> Tested:
        """Raises: ToolMissing."""
        if not self._tested:
            self._tested.append(terraform_checks.run_tests(self.tree, self.terraform))
        return self._tested[0]


CHECKS: Final[dict[str, Callable[[Bench], list[Finding]]]] = {
    "fmt": lambda bench: terraform_checks.check_fmt(bench.tree),
    "validate": lambda bench: terraform_checks.check_validate(bench.tree, bench.terraform),
    "test": lambda bench: bench.tested.findings,
    "refusals": lambda bench: terraform_checks.check_refusals(bench.tree),
    "tflint": lambda bench: terraform_checks.check_tflint(bench.tree, bench.scratch),
    "checkov": lambda bench: terraform_checks.check_checkov(bench.tree),
    "suppressions": lambda bench: terraform_checks.check_suppressions(bench.tree),
    "metrics": lambda bench: program_checks.check_metrics(bench.tree),
    "settings": lambda bench: program_checks.check_settings(bench.tree),
    "instance-types": lambda bench: program_checks.check_instance_types(bench.tree),
    "ports": lambda bench: program_checks.check_ports(bench.tree),
    "commands": lambda bench: program_checks.check_commands(bench.tree),
    "user-data": lambda bench: program_checks.check_user_data(bench.tested),
    "iam": lambda bench: program_checks.check_iam(bench.tested),
    "bills": lambda bench: program_checks.check_bills(bench.tree, bench.tested),
    "alerts": lambda bench: alert_checks.check_alerts(),
    "promises": lambda bench: program_checks.check_promises(bench.tree, bench.tested),
}

NAMES: Final = tuple(CHECKS)

CHEAP: Final = ("fmt", "refusals", "suppressions", "metrics", "settings", "instance-types", "ports", "commands")
"""Those that need nothing that has to be built or brought."""


def run(name: str, bench: Bench) -> list[Finding]:
    """Raises: ToolMissing."""
    return CHECKS[name](bench)
