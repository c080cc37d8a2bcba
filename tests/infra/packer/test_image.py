"""The Packer template agrees with infra/terraform and infra/bootstrap, and its script makes an image or stops.

Packer is not run. Terraform reads the same language, and checks the syntax.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from tools.infra import toolbox

INFRA = Path(__file__).parents[3] / "infra"
TEMPLATE = INFRA / "packer" / "firn.pkr.hcl"
SCRIPT = INFRA / "packer" / "install.sh"
AGENTS = ("amazon-ssm-agent", "amazon-cloudwatch-agent")
RECORD = '#!/bin/sh\necho "${0##*/} $*" >> "$RAN"\n'
BAKES = 'import os, sys\nopen(os.environ["RAN"], "a").write("bake " + " ".join(sys.argv[1:]) + "\\n")\n'


def test_the_template_is_of_right_syntax_and_form() -> None:
    try:
        program = toolbox.terraform()
    except toolbox.ToolMissing as error:
        pytest.skip(str(error))
    told = subprocess.run(
        [program, "fmt", "-"],
        input=TEMPLATE.read_text(),
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TF_CLI_CONFIG_FILE": os.devnull},
    )
    assert told.stdout == TEMPLATE.read_text()


def test_the_image_is_one_that_terraform_accepts() -> None:
    template, modules = TEMPLATE.read_text(), (INFRA / "terraform" / "variables.tf").read_text()
    [owner] = re.findall(r'owners += \["(\d+)"\]', template)
    assert owner in modules
    [device] = re.findall(r'device_name += "([^"]+)"', template)
    assert f'self.root_device_name == "{device}"' in (INFRA / "terraform" / "lookups.tf").read_text()
    [names] = re.findall(r"contains\(\[([^]]*)\], var\.architecture\)", template)
    assert f"contains([{names}], var.architecture)" in modules


def test_variables_are_declared_and_used() -> None:
    template = TEMPLATE.read_text()
    assert set(re.findall(r'^variable "(\w+)"', template, re.MULTILINE)) == set(re.findall(r"var\.(\w+)", template))


def test_the_script_has_the_files_that_packer_brings_and_the_packages_of_the_readme() -> None:
    template, script = TEMPLATE.read_text(), SCRIPT.read_text()
    brought = {Path(found).name for found in re.findall(r'destination = "/tmp/([^"]+)"', template)}
    assert brought == set(re.findall(r"\$files/([a-z.-]+)", script))
    assert set(re.findall(r'"(\w+)=\$\{', template)) == {"WHEELHOUSE_SHA256"}
    section = (INFRA / "README.md").read_text().partition("\n## Image\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    wanted = {name for row in rows for name in re.findall(r"`([^`/]+)`", row)}
    [command] = re.findall(r"install --no-install-recommends (.*?)\n[^ ]", script.replace("\\\n", ""), re.DOTALL)
    assert {Path(word.strip('"')).name.removesuffix(".deb") for word in command.split()} == wanted


def run(folder: Path, *, sha256: str | None = None) -> tuple[int, list[str]]:
    """The script's exit code and the commands that it ran, in order."""
    files, stubs, ran = folder / "files", folder / "stubs", folder / "ran"
    files.mkdir()
    stubs.mkdir()
    ran.touch()
    (folder / "state").mkdir()
    for name in ("apt-get", "cloud-init", "systemctl"):
        (stubs / name).write_text(RECORD)
        (stubs / name).chmod(0o755)
    (stubs / "python3").symlink_to(sys.executable)
    with tarfile.open(files / "firn-wheelhouse.tar.gz", "w:gz") as tar:
        member = tarfile.TarInfo("bootstrap/firn_bootstrap.py")
        member.size = len(BAKES)
        tar.addfile(member, io.BytesIO(BAKES.encode()))
    found = hashlib.sha256((files / "firn-wheelhouse.tar.gz").read_bytes()).hexdigest()
    for name in AGENTS:
        (files / f"{name}.deb").touch()
    env = {
        "PATH": f"{stubs}:/usr/bin:/bin",
        "RAN": str(ran),
        "FILES": str(files),
        "STATE": str(folder / "state"),
        "WHEELHOUSE_SHA256": sha256 or found,
    }
    done = subprocess.run(["bash", str(SCRIPT)], env=env, capture_output=True, check=False, timeout=60)
    return done.returncode, ran.read_text().replace(str(files), "FILES").splitlines()


def test_the_script_installs_bakes_and_leaves_no_identity_behind(tmp_path: Path) -> None:
    code, ran = run(tmp_path)
    assert code == 0
    assert ran == [
        "cloud-init status --wait",
        "apt-get -qq update",
        "apt-get -qq --yes dist-upgrade",
        "apt-get -qq --yes install --no-install-recommends logrotate python3-venv xfsprogs "
        "FILES/amazon-ssm-agent.deb FILES/amazon-cloudwatch-agent.deb",
        "systemctl enable amazon-ssm-agent.service",
        "bake --bake FILES/firn-wheelhouse.tar.gz",
        "apt-get -qq clean",
        "systemctl stop amazon-ssm-agent.service",
        "cloud-init clean --logs --seed --machine-id",
    ]
    assert not list((tmp_path / "files").iterdir())
    assert not (tmp_path / "state").exists()
    assert '"--bake"' in (INFRA / "bootstrap" / "firn_bootstrap.py").read_text()


def test_another_wheelhouse_stops_the_script_before_anything_is_installed(tmp_path: Path) -> None:
    code, ran = run(tmp_path, sha256="0" * 64)
    assert code != 0
    assert ran == []
