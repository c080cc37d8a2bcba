"""What infra/README.md and the examples tell people to type fits the repository, the modules and AWS's interfaces."""

from __future__ import annotations

import re

import pytest
from botocore import xform_name
from botocore.session import get_session

from tools.infra.findings import MODULES, blocks, files, without_comments
from tools.infra.program_checks import bootstrap_reader
from tools.infra.toolbox import REPOSITORY

README = (MODULES.parent / "README.md").read_text()
EXAMPLES = sorted(path.name for path in (MODULES / "examples").iterdir())
GLOBAL_FLAGS = {"region", "output", "query"}
HEARTBEATS_MAX = 100
"""As often as a time-out fits AWS ends a lifecycle hook, whoever keeps it open."""
_AWS = re.compile(r"\baws ([a-z][a-z0-9-]+) ([a-z][a-z0-9-]+)([^`]*?)(?=`|&&|\n(?!  )|$)", re.DOTALL)


def section(name: str) -> str:
    return README.partition(f"\n## {name}\n")[2].partition("\n## ")[0]


def test_each_line_of_the_way_to_a_record_is_typed_in_the_folder_where_it_works() -> None:
    (typed,) = re.findall(r"```sh\n(.*?)```", section("From an empty account to a record"), re.DOTALL)
    here = REPOSITORY
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))
    for line in typed.splitlines():
        for command in line.partition("#")[0].split("&&"):
            words = command.split()
            match words[:2]:
                case ["cd", folder]:
                    here = (here / folder).resolve()
                    assert here.is_dir(), command
                case ["make", target]:
                    assert here == REPOSITORY, f"`{command.strip()}` is typed in {here}"
                    assert target in targets, command
                case ["terraform", _]:
                    assert list(here.glob("*.tf")), f"`{command.strip()}` is typed in {here}"
                case ["aws", _] | ["sha256sum", _] if "dist/" in command:
                    assert here == REPOSITORY, f"`{command.strip()}` is typed in {here}"
    assert here.parent == MODULES / "examples"


def test_a_bucket_is_made_before_something_is_copied_to_it() -> None:
    made: set[str] = set()
    for verb, line in re.findall(
        r"^aws s3 (mb|cp) ([^\n]*)", section("From an empty account to a record"), re.MULTILINE
    ):
        (bucket,) = re.findall(r"s3://([a-z-]+)", line)
        if verb == "mb":
            made.add(bucket)
        assert bucket in made, f"nobody has made {bucket}"
    assert made


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_variables_of_an_example_are_all_that_it_needs(name: str) -> None:
    text = (MODULES / "examples" / name / "README.md").read_text()
    given = set(re.findall(r"^(\w+) += ", text.partition("<<EOT\n")[2].partition("\nEOT")[0], re.MULTILINE))
    declared = {
        labels[0]: "default" in body
        for labels, body in blocks((MODULES / "examples" / name / "variables.tf").read_text(), "variable")
    }
    needed = {variable for variable, has_default in declared.items() if not has_default}
    assert needed <= given <= set(declared)
    assert "wheelhouse" in given, "an image without packages in it would stop at its first boot"


def test_what_is_kept_leaves_the_state_with_all_that_closes_it() -> None:
    """A bucket whose policy and public-access block stay in the state is opened by the ``destroy`` that follows."""
    (line,) = re.findall(r"^ *terraform state rm ([^\n]*)$", section("Letting go of it"), re.MULTILINE)
    kept = re.findall(r"'module\.firn\.([^']+)'", line)
    must = set()
    for path in files(MODULES / "modules", "*.tf"):
        module = f"module.{path.parent.name}"
        for (kind, name), body in blocks(without_comments(path.read_text()), "resource"):
            if re.search(r"prevent_destroy\s*=\s*true", body) or kind.startswith("aws_s3_bucket"):
                must.add(f"{module}.{kind}.{name}")
    assert len(must) > 3
    left = {one for one in must if not any(one == address or one.startswith(f"{address}.") for address in kept)}
    assert left == set()


def commands() -> list[tuple[str, str, str, str]]:
    """Commands of AWS's own program in documents, descriptions and outputs: file, service, operation, and the rest of the line."""
    found = []
    for path in files(MODULES.parent, "*.md", "*.tf"):
        text = re.sub(r"\\+\n\s*", " ", path.read_text())
        text = re.sub(r"\n +(?=<[a-z_]+>-)", " ", text)  # a description that is wrapped before a placeholder
        found += [(str(path.relative_to(MODULES.parent)), *match.groups()) for match in _AWS.finditer(text)]
    return found


def test_commands_of_aws_exist_and_take_their_flags() -> None:
    session = get_session()
    known = {*session.get_available_services(), "s3api"}
    checked = set()
    for file, service, operation, rest in commands():
        if service not in known or service == "s3":  # prose ("aws or …"), or what copies files and has no model
            continue
        model = session.get_service_model("s3" if service == "s3api" else service)
        operations = {xform_name(name, "-"): name for name in model.operation_names}
        assert operation in operations, f"{file}: aws {service} {operation}"
        shape = model.operation_model(operations[operation]).input_shape
        takes = {xform_name(name, "-") for name in shape.members} if shape is not None else set()
        for flag in re.findall(r"(?<!\S)--([a-z][a-z-]*)", re.sub(r"'[^']*'|\"[^\"]*\"", "X", rest)):
            assert flag.removeprefix("no-") in takes | GLOBAL_FLAGS, f"{file}: aws {service} {operation} --{flag}"
        checked.add(operation)
    assert {"set-instance-protection", "terminate-instance-in-auto-scaling-group", "put-lifecycle-hook"} <= checked
    assert {"start-job-run", "put-public-access-block", "start-session", "create-snapshot"} <= checked


def test_a_command_that_ends_a_broker_for_good_also_ends_a_protected_machine() -> None:
    """A capacity of 0 alone leaves a machine that started with protection from scale-in."""
    rows = dict(re.findall(r"^\| ([^|]+) \| ([^\n]+) \|$", section("Day by day"), re.MULTILINE))
    assert "--should-decrement-desired-capacity" in rows["stop for a while"]
    assert "--no-protected-from-scale-in" in rows["add `scale_to_zero` to a running machine"]


def test_a_drain_may_last_as_long_for_terraform_as_for_the_agent_and_the_readme() -> None:
    limit_s = round(bootstrap_reader().DRAIN_S_MAX)
    (most,) = re.findall(r"var\.drain_timeout_s <= (\d+)", (MODULES / "variables.tf").read_text())
    (heartbeat,) = re.findall(r"heartbeat_timeout_s = (\d+)", (MODULES / "modules/broker/main.tf").read_text())
    assert int(most) == limit_s
    assert int(heartbeat) * HEARTBEATS_MAX == limit_s
    says = " ".join(section("What must not be lost").split())
    assert f"after {HEARTBEATS_MAX} heartbeats of {heartbeat} s ({limit_s // 60} minutes)" in says


def test_no_bucket_in_a_command_is_left_for_the_reader_to_find() -> None:
    for path in files(MODULES.parent, "*.md", "*.tf"):
        assert "YOUR-BUCKET" not in path.read_text(), path
