"""Checks of infra/terraform by Terraform itself, tflint and checkov: form, types, plans, refusals and known bad practice."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tools.infra import toolbox
from tools.infra.findings import Finding, blocks, files, folders, name_of, without_comments
from tools.infra.toolbox import Terraform, run

TFLINT_RULES: Final = """\
config {
  call_module_type = "local"
}
plugin "terraform" {
  enabled = true
  preset  = "all"
}
rule "terraform_standard_module_structure" {
  enabled = false # files are named for what they hold: network, lookups, checks
}
"""

_MESSAGE: Final = re.compile(r'^\s*error_message\s*=\s*"(.*)"\s*$', re.MULTILINE)
_INTERPOLATION: Final = re.compile(r"\$\{[^}]*\}")
_SECOND_SENTENCE: Final = re.compile(r"[.?!] +\S")

SUPPRESSION: Final = re.compile(r"#\s*checkov:skip=(\w+)(?::(.*))?$", re.MULTILINE)
REASON_WORDS_MIN: Final = 6
"""A shorter reason only repeats the name of the suppressed check, and does not say why."""


def check_fmt(tree: Path) -> list[Finding]:
    """``terraform fmt -check``. Raises: ToolMissing."""
    command = [toolbox.terraform(), "fmt", "-check", "-recursive", "-list=true"]
    told = run(command, cwd=tree, env={"TF_CLI_CONFIG_FILE": os.devnull, "CHECKPOINT_DISABLE": "1"})
    if told.code == 0:
        return []
    named = [line for line in told.stdout.splitlines() if line.strip()]
    if not named:
        return [Finding("fmt", "tree", told.told)]
    return [Finding("fmt", name, "is not formatted; run terraform fmt") for name in named]


def check_validate(tree: Path, terraform: Terraform) -> list[Finding]:
    """``terraform validate`` with the schema of the AWS provider, on the root module, every inner module and every example."""
    found = []
    for folder in folders(tree):
        name = name_of(folder, tree)
        if any('module "' in path.read_text() for path in folder.glob("*.tf")):
            got = terraform("get", folder=folder)
            if got.code != 0:
                found.append(Finding("validate", name, got.told))
                continue
        told = terraform("validate", "-json", folder=folder)
        try:
            answer = json.loads(told.stdout)
        except ValueError:
            found.append(Finding("validate", name, told.told))
            continue
        for each in answer["diagnostics"]:
            if each["severity"] == "error" or "overrides are in effect" not in each["summary"]:
                found.append(Finding("validate", _place(each, name), f"{each['summary']}: {each.get('detail', '')}"))
    return found


def _place(diagnostic: dict[str, Any], name: str) -> str:
    at = diagnostic.get("range")
    return f"{name}, {at['filename']}:{at['start']['line']}" if at else name


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource as a run planned or made it."""

    run: str
    address: str
    kind: str
    values: dict[str, Any]


@dataclass(slots=True)
class Tested:
    """The output of the runs of a tree's test files."""

    findings: list[Finding] = field(default_factory=list)
    resources: list[Resource] = field(default_factory=list)
    """Of every run that planned or applied. Computed attributes have a value that the mock made up."""
    outputs: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    """The outputs of every such run."""

    def of(self, *kinds: str) -> Iterator[Resource]:
        return (each for each in self.resources if each.kind in kinds)


def run_tests(tree: Path, terraform: Terraform) -> Tested:
    """``terraform test`` in every folder that has test files. The root module and each example must have some."""
    tested = Tested()
    for folder in folders(tree):
        name = name_of(folder, tree)
        if not any(files(folder if folder != tree else tree / "tests", "*.tftest.hcl")) and not any(
            folder.glob("*.tftest.hcl")
        ):
            if folder == tree or folder.parent.name == "examples":
                tested.findings.append(Finding("test", name, "has no test file (*.tftest.hcl)"))
            continue
        got = terraform("get", "-test-directory=tests", folder=folder)
        if got.code != 0:
            tested.findings.append(Finding("test", name, got.told))
            continue
        _read_tests(terraform("test", "-json", "-verbose", folder=folder), name, tested)
    return tested


def _read_tests(told: toolbox.Outcome, name: str, tested: Tested) -> None:
    ran = failed = 0
    for line in told.stdout.splitlines():
        try:
            message = json.loads(line)
        except ValueError:
            continue
        place = f"{name}, {message.get('@testfile', '')} {message.get('@testrun', '')}".strip()
        match message.get("type"):
            case "diagnostic" if message["diagnostic"]["severity"] == "error":
                failed += 1
                each = message["diagnostic"]
                tested.findings.append(Finding("test", place, f"{each['summary']}: {each.get('detail', '')}"))
            case "test_run" if message["test_run"].get("progress") == "complete":
                ran += 1
            case "test_plan":
                planned = message["test_plan"]
                tested.outputs.append(
                    (place, {key: one.get("after") for key, one in planned.get("output_changes", {}).items()})
                )
                tested.resources += [
                    Resource(place, each["address"], each["type"], each["change"].get("after"))
                    for each in planned.get("resource_changes", ())
                    if each["mode"] == "managed" and each["change"].get("after") is not None
                ]
            case "test_state":
                made = message["test_state"].get("values", {})
                outputs = made.get("outputs", {})
                tested.outputs.append((place, {key: one.get("value") for key, one in outputs.items()}))
                tested.resources += _made(place, made.get("root_module", {}))
    if told.code != 0 and not failed:
        tested.findings.append(Finding("test", name, told.told[-2000:]))
    if not ran:
        tested.findings.append(Finding("test", name, "its test files ran nothing"))


def _made(place: str, module: dict[str, Any]) -> list[Resource]:
    own = [
        Resource(place, each["address"], each["type"], each["values"])
        for each in module.get("resources", ())
        if each["mode"] == "managed"
    ]
    return own + [each for inner in module.get("child_modules", ()) for each in _made(place, inner)]


def check_refusals(tree: Path) -> list[Finding]:
    """Every validation of a variable, and every pre- and postcondition, has a run that expects it to fail.

    Counted, in each folder by itself: as many runs with ``expect_failures`` on a variable as it has validations. A run cannot
    see the text of a refusal, so messages are read here: the first sentence names the fault, a second one the repair.
    """
    found = []
    for folder in folders(tree):
        texts = {path: without_comments(path.read_text()) for path in sorted(folder.glob("*.tf"))}
        tests = [without_comments(path.read_text()) for path in _test_files(folder)]
        expected = Counter(
            target
            for text in tests
            for _, body in blocks(text, "run")
            for listed in re.findall(r"expect_failures\s*=\s*\[(.*?)\]", body, re.DOTALL)
            for target in set(re.findall(r"[a-z_]+(?:\.[a-z0-9_]+)+", listed))
        )
        for path, text in texts.items():
            name = f"{name_of(folder, tree)}, {path.name}"
            found += [
                Finding("refusals", name, f"a refusal does not say what to do: {message}")
                for kind in ("validation", "precondition", "postcondition")
                for _, body in blocks(text, kind)
                for message in _MESSAGE.findall(body)
                if not _SECOND_SENTENCE.search(_INTERPOLATION.sub("X", message))
            ]
            wanted = {
                f"var.{labels[0]}": len(list(blocks(body, "validation"))) for labels, body in blocks(text, "variable")
            }
            for kind, prefix in (("resource", ""), ("data", "data.")):
                for labels, body in blocks(text, kind):
                    guards = len(list(blocks(body, "precondition"))) + len(list(blocks(body, "postcondition")))
                    wanted[prefix + ".".join(labels)] = guards
            for labels, body in blocks(text, "output"):
                wanted[f"output.{labels[0]}"] = len(list(blocks(body, "precondition")))
            for labels, _ in blocks(text, "check"):
                wanted[f"check.{labels[0]}"] = 1
            for target, count in wanted.items():
                if expected[target] < count:
                    told = f"{target} is refused in {count} ways, and {expected[target]} runs expect a refusal"
                    found.append(Finding("refusals", name, told))
    return found


def _test_files(folder: Path) -> list[Path]:
    return [*sorted(folder.glob("*.tftest.hcl")), *sorted(folder.glob("tests/*.tftest.hcl"))]


def check_tflint(tree: Path, scratch: Path) -> list[Finding]:
    """tflint with all rules that are built into it. Its rules for AWS are a plugin, which is not used."""
    program = toolbox.tflint()
    rules = scratch / "tflint.hcl"
    rules.write_text(TFLINT_RULES)
    found = []
    for folder in folders(tree):
        told = run([program, f"--chdir={folder}", f"--config={rules}", "--format=json", "--force"])
        try:
            answer = json.loads(told.stdout)
        except ValueError:
            found.append(Finding("tflint", name_of(folder, tree), told.told))
            continue
        for each in answer["issues"]:
            at = each["range"]
            place = f"{name_of(folder, tree)}, {Path(at['filename']).name}:{at['start']['line']}"
            found.append(Finding("tflint", place, f"{each['rule']['name']}: {each['message']}"))
        found += [Finding("tflint", name_of(folder, tree), each["message"]) for each in answer["errors"]]
    return found


def check_checkov(tree: Path) -> list[Finding]:
    """checkov with its bundled policies on everything that Terraform reads."""
    command: list[str | Path] = [
        toolbox.checkov(), "--directory", tree, "--framework", "terraform", "--skip-download", "--quiet", "--compact",
        "--output", "json", "--soft-fail", "--download-external-modules", "false",
    ]  # fmt: skip
    told = run(command, env={"CHECKOV_DISABLE_PROGRESS_BAR": "1", "PYTHONWARNINGS": "ignore"})
    try:
        answer = json.loads(told.stdout)
    except ValueError:
        return [Finding("checkov", "tree", told.told[-2000:])]
    reports = answer if isinstance(answer, list) else [answer]
    if not any("summary" in report and report["summary"]["resource_count"] for report in reports):
        return [Finding("checkov", "tree", "it looked at no resource")]
    found = {
        Finding(
            "checkov",
            f"{each['file_path'].lstrip('/')}, {each['resource']}",
            f"{each['check_id']} {each['check_name']}",
        )
        for report in reports
        for each in report.get("results", {}).get("failed_checks", ())
    }
    broken = {error for report in reports for error in report.get("results", {}).get("parsing_errors", ())}
    return sorted(found, key=str) + [Finding("checkov", error, "cannot be read") for error in sorted(broken)]


def check_suppressions(tree: Path) -> list[Finding]:
    """Every suppression of a check says why; none is for a whole run, or silent."""
    found = []
    for path in files(tree, "*.tf", "*.tftest.hcl", ".checkov.y*ml", ".tflint.hcl"):
        where = str(path.relative_to(tree))
        text = path.read_text()
        for match in SUPPRESSION.finditer(text):
            if len((match[2] or "").split()) < REASON_WORDS_MIN:
                found.append(
                    Finding(
                        "suppressions",
                        where,
                        f"{match[1]} is skipped without a reason; say after a colon why it holds here",
                    )
                )
        for match in re.finditer(r"#\s*tflint-ignore:([^\n]*)\n([^\n]*)", text):
            if len(match[2].strip().lstrip("#").split()) < REASON_WORDS_MIN or not match[2].strip().startswith("#"):
                found.append(
                    Finding("suppressions", where, f"tflint-ignore:{match[1]} has no comment below that says why")
                )
    for path in tree.rglob(".checkov.y*ml"):
        found.append(
            Finding(
                "suppressions",
                str(path.relative_to(tree)),
                "skips checks for all; suppress them where they do not hold",
            )
        )
    return found
