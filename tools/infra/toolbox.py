"""The programs that the checks of infra/terraform need, made once under .cache/infra.

Terraform and Go are the machine's. The stub provider is built here, tflint by ``go install``, checkov in an environment of its
own, and the AWS provider's schema is read out of a Python package (``aws_schema.py``). Each is brought by the client that the
machine has set up, so nothing here names a host.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tools.infra import aws_schema

REPOSITORY: Final = Path(__file__).resolve().parents[2]
CACHE: Final = REPOSITORY / ".cache" / "infra"
STUB_SOURCES: Final = Path(__file__).parent / "stub_provider"
PROMTOOL_MODULE: Final = Path(__file__).parent / "promtool"
"""A Go module that names Prometheus' own tool, because ``go install`` refuses the modules that Prometheus replaces."""

TFLINT: Final = "github.com/terraform-linters/tflint"
TFLINT_VERSION: Final = "v0.64.0"
PROMTOOL: Final = "github.com/prometheus/prometheus/cmd/promtool"
CHECKOV_VERSION: Final = "3.3.30"
TERRAFORM_MIN: Final = (1, 9)

_TYPE: Final = re.compile(r"\baws_[a-z0-9_]+")

BUILD_TIMEOUT_S: Final = 1800
RUN_TIMEOUT_S: Final = 1800


class ToolMissing(Exception):
    """A program or package that a check needs cannot be brought, or does not end in time. The text says which."""


@dataclass(frozen=True, slots=True)
class Outcome:
    code: int
    stdout: str
    stderr: str

    @property
    def told(self) -> str:
        return "\n".join(part for part in (self.stdout.strip(), self.stderr.strip()) if part)


def run(
    command: Sequence[str | Path],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout_s: float = RUN_TIMEOUT_S,
) -> Outcome:
    """Run a program to its end; every exit code is an outcome. Raises: ToolMissing if it does not end in time."""
    try:
        done = subprocess.run(
            [str(part) for part in command],
            cwd=cwd,
            env=None if env is None else {**os.environ, **env},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except subprocess.TimeoutExpired as error:
        told = " ".join(str(part) for part in command)
        raise ToolMissing(
            f"{told} did not end within {timeout_s:g} s. Run the check again, or on another machine."
        ) from error
    return Outcome(done.returncode, done.stdout, done.stderr)


def program(name: str) -> str:
    """The path of a program of this machine. Raises: ToolMissing."""
    found = shutil.which(name)
    if found is None:
        raise ToolMissing(f"{name} is not on this machine's PATH; install it to run the checks of infra/terraform.")
    return found


def terraform() -> str:
    """Raises: ToolMissing."""
    found = program("terraform")
    told = run([found, "version", "-json"], env={"TF_CLI_CONFIG_FILE": os.devnull})
    version = str(json.loads(told.stdout)["terraform_version"])
    if tuple(int(part) for part in version.split("-")[0].split(".")[:2]) < TERRAFORM_MIN:
        raise ToolMissing(f"Terraform {version} is too old; the modules need 1.9 or newer.")
    return found


def _made(target: Path, make: Any) -> Path:
    """``target``, made by ``make`` in a folder beside it and moved into place whole, so that a stopped build leaves nothing."""
    if target.exists():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".making-") as folder:
        made = make(Path(folder))
        try:
            made.rename(target)
        except OSError:
            if not target.exists():  # else another process was first
                raise
    return target


def _build(
    command: Sequence[str | Path], what: str, *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> None:
    print(f"==> {what}", file=sys.stderr, flush=True)
    try:
        done = run(command, cwd=cwd, env=env, timeout_s=BUILD_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise ToolMissing(
            f"{what} was not done after {BUILD_TIMEOUT_S // 60} minutes. Start it again: Go and pip keep the parts that are done."
        ) from None
    if done.code != 0:
        raise ToolMissing(f"{what} failed: {done.told[-1500:]}.")


def schema() -> Path:
    """The schema of the AWS provider as JSON. Raises: ToolMissing."""

    def make(folder: Path) -> Path:
        wanted = f"{aws_schema.DISTRIBUTION}=={aws_schema.DISTRIBUTION_VERSION}"
        pip: list[str | Path] = [
            sys.executable,
            "-m",
            "pip",
            "--disable-pip-version-check",
            "--quiet",
            "download",
            "--no-deps",
        ]
        _build([*pip, "--dest", folder, wanted], f"bringing the schema of the AWS provider ({wanted}, 59 MB)")
        (wheel,) = folder.glob("*.whl")
        made = folder / "schema.json"
        read = aws_schema.read_wheel(wheel)
        if read["version"] != aws_schema.PROVIDER_VERSION:
            raise ToolMissing(
                f"{wanted} carries AWS provider {read['version']}, expected {aws_schema.PROVIDER_VERSION}."
            )
        made.write_text(json.dumps(read, separators=(",", ":")))
        return made

    reader = hashlib.sha256(Path(aws_schema.__file__).read_bytes()).hexdigest()[:12]
    return _made(CACHE / f"aws-{aws_schema.PROVIDER_VERSION}-{reader}.json", make)


def stub_provider() -> Path:
    """The folder with the stub provider. Raises: ToolMissing."""
    sources = hashlib.sha256(b"".join((STUB_SOURCES / name).read_bytes() for name in ("main.go", "go.mod", "go.sum")))

    def make(folder: Path) -> Path:
        made = folder / "provider"
        command: list[str | Path] = [program("go"), "build", "-trimpath", "-o", made / "terraform-provider-aws", "."]
        _build(command, "building the stub provider", cwd=STUB_SOURCES, env={"CGO_ENABLED": "0"})
        return made

    return _made(CACHE / f"provider-{sources.hexdigest()[:12]}", make)


def tflint() -> Path:
    """Raises: ToolMissing."""

    def make(folder: Path) -> Path:
        command: list[str | Path] = [program("go"), "install", f"{TFLINT}@{TFLINT_VERSION}"]
        _build(
            command, f"building tflint {TFLINT_VERSION} (some minutes)", env={"GOBIN": str(folder), "CGO_ENABLED": "0"}
        )
        return folder / "tflint"

    return _made(CACHE / f"tflint-{TFLINT_VERSION}", make)


def promtool() -> Path:
    """Prometheus' tool for rules, of the version in ``promtool/go.mod``. Raises: ToolMissing."""
    sources = hashlib.sha256(b"".join((PROMTOOL_MODULE / name).read_bytes() for name in ("go.mod", "go.sum")))

    def make(folder: Path) -> Path:
        made = folder / "promtool"
        command: list[str | Path] = [program("go"), "build", "-trimpath", "-o", made, PROMTOOL]
        _build(command, "building promtool (ten minutes)", cwd=PROMTOOL_MODULE, env={"CGO_ENABLED": "0"})
        return made

    return _made(CACHE / f"promtool-{sources.hexdigest()[:12]}", make)


def checkov() -> Path:
    """The program of checkov in its own environment. Raises: ToolMissing."""
    home = CACHE / f"checkov-{CHECKOV_VERSION}"
    ready = home / "ready"
    if not ready.exists():  # environments cannot be moved: this one is made in place and says when it is whole
        shutil.rmtree(home, ignore_errors=True)
        home.parent.mkdir(parents=True, exist_ok=True)
        _build([sys.executable, "-m", "venv", home], "making an environment for checkov")
        pip: list[str | Path] = [
            home / "bin" / "python",
            "-m",
            "pip",
            "--disable-pip-version-check",
            "--quiet",
            "install",
        ]
        _build([*pip, f"checkov=={CHECKOV_VERSION}"], f"installing checkov {CHECKOV_VERSION} (290 MB)")
        ready.touch()
    return home / "bin" / "checkov"


@dataclass(slots=True)
class Terraform:
    """Terraform with the stub as its AWS provider, for the modules of one tree.

    The stub serves the types that the tree names, out of all: Terraform asks for them anew several times a run. Terraform
    writes to ``scratch``; the modules' folders stay clean.
    """

    tree: Path
    scratch: Path
    _program: str = field(default_factory=terraform)
    _environment: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        provider = stub_provider()
        settings = self.scratch / "terraform.rc"
        settings.write_text(f'provider_installation {{\n  dev_overrides {{ "hashicorp/aws" = "{provider}" }}\n}}\n')
        whole = json.loads(schema().read_text())
        named = {
            name
            for path in self.tree.rglob("*.*")
            if path.suffix in {".tf", ".hcl"}
            for name in _TYPE.findall(path.read_text())
        }
        for kind in ("resources", "data"):
            whole[kind] = {name: block for name, block in whole[kind].items() if name in named}
        served = self.scratch / "schema.json"
        served.write_text(json.dumps(whole))
        self._environment = {
            "TF_CLI_CONFIG_FILE": str(settings),
            "TF_IN_AUTOMATION": "1",
            "TF_INPUT": "0",
            "CHECKPOINT_DISABLE": "1",
            "STUB_SCHEMA": str(served),
            "NO_COLOR": "1",
        }

    def __call__(self, *arguments: str, folder: Path) -> Outcome:
        """``terraform <arguments>`` in a folder."""
        data = hashlib.sha256(str(folder).encode()).hexdigest()[:16]
        return run(
            [self._program, *arguments], cwd=folder, env={**self._environment, "TF_DATA_DIR": str(self.scratch / data)}
        )
