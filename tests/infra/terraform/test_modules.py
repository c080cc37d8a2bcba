"""infra/terraform passes every check of ``tools/infra``; docs of each check are at its function."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.infra import checks
from tools.infra.findings import MODULES
from tools.infra.toolbox import ToolMissing


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


def test_a_check_that_has_nothing_to_look_at_does_not_pass(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as ended:
        main_with(tmp_path)
    assert ended.value.code == 2


def main_with(tree: Path) -> None:
    from tools.infra.__main__ import main

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["infra", "fmt", "--tree", str(tree)])
        main()
