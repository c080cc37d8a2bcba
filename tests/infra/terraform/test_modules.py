"""infra/terraform passes every check of ``tools/infra``; docs of each check are at its function."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tools.infra import checks
from tools.infra.findings import MODULES, blocks
from tools.infra.toolbox import ToolMissing, run


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> checks.Bench:
    return checks.Bench(MODULES, tmp_path_factory.mktemp("infra"))


def found(name: str, bench: checks.Bench) -> list[str]:
    try:
        return [str(each) for each in checks.run(name, bench)]
    except ToolMissing as missing:
        pytest.skip(str(missing))


@pytest.mark.parametrize("name", checks.CHEAP)
def test_modules_pass_the_check_that_needs_no_download(name: str, bench: checks.Bench) -> None:
    assert found(name, bench) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in checks.NAMES if name not in checks.CHEAP])
def test_modules_pass_the_check(name: str, bench: checks.Bench) -> None:
    assert found(name, bench) == []


BUCKET = (
    "aws_s3_bucket",
    "aws_s3_bucket_lifecycle_configuration",
    "aws_s3_bucket_ownership_controls",
    "aws_s3_bucket_policy",
    "aws_s3_bucket_public_access_block",
    "aws_s3_bucket_server_side_encryption_configuration",
)
ONCE = {f"{kind}.{name}[0]" for kind in BUCKET for name in ("this", "wal")} | {"aws_s3_bucket_versioning.this[0]"}
"""Addresses of buckets in states of earlier versions of the module ``storage``."""


def test_no_address_of_a_bucket_of_an_earlier_version_is_left_behind() -> None:
    storage = MODULES / "modules" / "storage"
    moved = dict(re.findall(r"from = (\S+)\n +to +=\s(\S+)", (storage / "moved.tf").read_text()))
    assert moved == {
        old: old.replace(".this[0]", '.this["cluster"]').replace(".wal[0]", '.this["wal"]') for old in ONCE
    }
    resources = {".".join(labels) for labels, _ in blocks((storage / "main.tf").read_text(), "resource")}
    assert {new.partition("[")[0] for new in moved.values()} <= resources


def test_a_program_that_does_not_end_is_told_as_one_that_cannot_be_used() -> None:
    with pytest.raises(ToolMissing, match=r"tail -f \S+ did not end within 0\.01 s"):
        run(["tail", "-f", os.devnull], timeout_s=0.01)


def test_a_check_that_has_nothing_to_look_at_does_not_pass(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main_with(tmp_path)
    assert ended.value.code == 2


def main_with(tree: Path) -> None:
    from tools.infra.__main__ import main

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["infra", "fmt", "--tree", str(tree)])
        main()
