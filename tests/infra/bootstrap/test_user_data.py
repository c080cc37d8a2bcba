"""The user data: small, of the standard library alone, and it runs nothing whose SHA-256 is not the launch template's."""

from __future__ import annotations

import ast
import base64
import contextlib
import gzip
import hashlib
import io
import json
import os
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from firn_bootstrap import ENABLED
from firn_machine import Done, bake, install, unpack
from firn_settings import Refused

from tests.infra.bootstrap.conftest import REGION, FakeMachine, World

BOOTSTRAP = Path(__file__).parents[3] / "infra" / "bootstrap"
TEMPLATE = (BOOTSTRAP / "user_data.py.tftpl").read_text()
FIELD = "${base64encode(bootstrap)}"
USER_DATA_BYTES_MAX = 16_384
"""EC2's limit, before base64."""


def rendered(settings: dict[str, Any]) -> str:
    """As Terraform's templatefile() does."""
    return TEMPLATE.replace(FIELD, base64.b64encode(json.dumps(settings).encode()).decode())


def test_the_template_has_one_field_and_nothing_else_that_terraform_would_read() -> None:
    assert TEMPLATE.count(FIELD) == 1
    assert TEMPLATE.count("${") == 1
    assert "%{" not in TEMPLATE


def test_the_user_data_fits_with_every_setting_that_a_broker_has(settings: dict[str, Any]) -> None:
    settings["settings"] = {f"some.setting.with.a.long.name.{number}": "v" * 40 for number in range(40)}
    text = rendered(settings)
    assert len(text.encode()) < USER_DATA_BYTES_MAX
    assert text.startswith("#!/usr/bin/python3"), "cloud-init runs it as a script"


@pytest.mark.parametrize("name", ["user_data.py.tftpl", *sorted(one.name for one in BOOTSTRAP.glob("*.py"))])
def test_a_machine_needs_nothing_but_the_standard_library(name: str) -> None:
    own = {one.stem for one in BOOTSTRAP.glob("*.py")} if name != "user_data.py.tftpl" else set()
    if name == "firn_commands.py":
        own.add("app")  # it runs with the release's Python, once that is installed
    imported = set()
    for node in ast.walk(ast.parse((BOOTSTRAP / name).read_text(), feature_version=(3, 11))):
        if isinstance(node, ast.Import):
            imported |= {one.name.partition(".")[0] for one in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add((node.module or "").partition(".")[0])
    assert imported - own <= sys.stdlib_module_names


def archive_of(*entries: tuple[str, bytes], link: str = "") -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as tar:
        for name, data in entries:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
        if link:
            info = tarfile.TarInfo("wheels/link")
            info.type, info.linkname = tarfile.SYMTYPE, link
            tar.addfile(info)
    return gzip.compress(raw.getvalue())


GOOD = archive_of(
    ("bootstrap/firn_bootstrap.py", b"pass\n"),
    ("systemd/firn.service", b"[Service]\n"),
    ("wheels/a.whl", b"wheel"),
    ("requirements.txt", b"a==1\n"),
)

Run = Callable[[bytes], tuple[list[str] | None, str]]


@pytest.fixture
def run(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Put an archive where the launch template says, run the user data, and return what it hands over to, and what it said."""
    bucket = world.bucket

    def go(archive: bytes) -> tuple[list[str] | None, str]:
        if archive:
            world.s3.put_object(Bucket=bucket, Key="firn/house.tar.gz", Body=archive)
        text = rendered(world.settings)
        for place in ("/etc/firn", "/opt/firn"):
            text = text.replace(f'"{place}', f'"{tmp_path}{place}')
        handed: list[list[str]] = []
        monkeypatch.setattr(os, "execv", lambda path, arguments: handed.append(arguments))
        with contextlib.suppress(SystemExit):  # it stops before it hands over
            exec(compile(text, "user_data.py", "exec"), {"__name__": "__main__"})
        return handed[0] if handed else None, capsys.readouterr().out

    world.settings["wheelhouse"] = {
        "bucket": bucket,
        "key": "firn/house.tar.gz",
        "sha256": hashlib.sha256(GOOD).hexdigest(),
    }
    world.settings["region"] = REGION
    return go


def test_the_wheelhouse_is_checked_unpacked_and_given_the_word(run: Run, tmp_path: Path, world: World) -> None:
    handed, _ = run(GOOD)
    folder = tmp_path / "opt/firn/wheelhouses" / hashlib.sha256(GOOD).hexdigest()
    settings = tmp_path / "etc/firn/bootstrap.json"
    program = str(folder / "bootstrap/firn_bootstrap.py")
    assert handed == ["/usr/bin/python3", "-sE", program, "--settings", str(settings), "--wheelhouse", str(folder)]
    assert (folder / "wheels/a.whl").read_bytes() == b"wheel"
    assert json.loads(settings.read_text()) == world.settings
    assert sorted(one.name for one in folder.parent.iterdir()) == [folder.name], "the archive is not kept"


def test_a_wheelhouse_that_was_changed_is_not_used(run: Run, tmp_path: Path) -> None:
    handed, said = run(archive_of(("bootstrap/firn_bootstrap.py", b"import evil\n")))
    assert handed is None
    assert "Nothing of it was used" in said
    assert not list(tmp_path.rglob("firn_bootstrap.py"))


@pytest.mark.parametrize(
    "archive",
    [archive_of(("../x", b"")), archive_of(("/x", b"")), archive_of(link="/etc")],
    ids=["above", "absolute", "link"],  # an archive bears the time at which it was made
)
def test_a_wheelhouse_with_an_entry_outside_itself_is_not_used(run: Run, world: World, archive: bytes) -> None:
    world.settings["wheelhouse"]["sha256"] = hashlib.sha256(archive).hexdigest()
    handed, said = run(archive)
    assert handed is None
    assert "is no file or folder inside it" in said


def test_a_wheelhouse_that_is_not_there_is_named(run: Run, world: World) -> None:
    world.settings["wheelhouse"]["key"] = "firn/missing.tar.gz"
    handed, said = run(b"")
    assert handed is None
    assert "refuses the wheelhouse firn/missing.tar.gz (status 404)" in said


def test_a_baked_release_is_not_downloaded(run: Run, tmp_path: Path, world: World) -> None:
    baked = tmp_path / "opt/firn/baked" / world.settings["wheelhouse"]["sha256"]
    baked.mkdir(parents=True)
    world.metadata.instance.on = False
    handed, _ = run(b"")
    assert handed is not None
    assert handed[2] == str(baked / "bootstrap/firn_bootstrap.py")


def test_the_one_baked_release_is_taken_if_no_wheelhouse_is_named(run: Run, tmp_path: Path, world: World) -> None:
    world.settings["wheelhouse"] = None
    assert run(b"")[0] is None
    (tmp_path / "opt/firn/baked/one").mkdir(parents=True)
    handed, _ = run(b"")
    assert handed is not None
    (tmp_path / "opt/firn/baked/two").mkdir()
    assert run(b"")[0] is None


# --- releases


def test_a_release_is_installed_from_its_wheels_alone_and_with_their_hashes(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    archive = tmp_path / "house.tar.gz"
    archive.write_bytes(GOOD)
    sha256 = bake(machine, archive)
    release = tmp_path / "opt/firn/releases" / sha256
    [installer] = [command for command in machine.ran if command[0] == "python3"]
    assert installer == (
        *("python3", "-sE", str(BOOTSTRAP / "firn_install.py")),
        *("--wheelhouse", str(tmp_path / "opt/firn/baked" / sha256), "--release", str(release)),
    )
    assert (release / ".complete").exists()
    assert (release / "systemd/firn.service").exists()
    assert (tmp_path / "etc/systemd/system/firn.service").read_text() == "[Service]\n", "no boot has new units"
    assert not (tmp_path / ENABLED.lstrip("/")).exists(), "the first boot is the user data's"
    machine.ran.clear()
    bake(machine, archive)
    assert machine.ran == [], "it is there already"


def test_a_release_whose_install_was_cut_off_is_begun_anew(tmp_path: Path) -> None:
    machine = FakeMachine(tmp_path)
    house = tmp_path / "house"
    (tmp_path / "house.tar.gz").write_bytes(GOOD)
    unpack(tmp_path / "house.tar.gz", house)
    release = tmp_path / "release"
    (release / "bin").mkdir(parents=True)
    (release / "bin/half").touch()
    machine.answers["python3 -sE"] = Done(1, "", "Wheel a.whl has SHA-256 0, and requirements.txt wants 1.\n")
    with pytest.raises(Refused, match=r"cannot be installed: Wheel a\.whl has SHA-256 0"):
        install(machine, house, release)
    assert not (release / ".complete").exists()
    assert not (release / "bin/half").exists()


def test_an_archive_with_an_entry_outside_itself_is_not_unpacked(tmp_path: Path) -> None:
    (tmp_path / "bad.tar.gz").write_bytes(archive_of(("wheels/../../x", b"")))
    with pytest.raises(Refused, match="no file or folder inside it"):
        unpack(tmp_path / "bad.tar.gz", tmp_path / "out")
    assert not (tmp_path / "out").exists()
