"""``firn store init``, and what ``firn doctor`` says of a store in a directory."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from app.cli.commands import application
from app.cli.doctor import store_checks
from app.core.errors import ConfigError
from app.objectstore.directory import DirectoryStore


def init(url: str) -> str:
    """What the command says."""
    from app.cli import store

    done = CliRunner().invoke(store.app, ["init", url], catch_exceptions=False)
    assert done.exit_code == 0
    return done.output


def test_init_makes_a_private_store_once(tmp_path: Path) -> None:
    root = tmp_path / "store"
    assert "is a new store" in init(f"file://{root}")
    assert root.stat().st_mode & 0o777 == 0o700
    assert "Nothing was changed" in init(f"file://{root}?mode=0750")
    assert (root / ".instances").stat().st_mode & 0o777 == 0o700


def test_init_makes_a_store_that_a_group_may_read(tmp_path: Path) -> None:
    assert "is a new store" in init(f"file://{tmp_path}/store?mode=0750")
    assert (tmp_path / "store" / ".instances").stat().st_mode & 0o777 == 0o750


def test_init_is_for_directories() -> None:
    with pytest.raises(ConfigError, match="is no directory"):
        init("s3://bucket")
    assert application(["store"]) is not None


async def told_of_permissions(root: Path) -> str:
    [told] = [one.detail for one in await store_checks(f"file://{root}") if one.name == "store: permissions"]
    return told


async def test_the_doctor_says_who_can_read_a_store(tmp_path: Path) -> None:
    for name, mode, words in (
        ("private", None, "for the broker's user alone"),
        ("shared", 0o750, "the group of its files can read"),
        ("open", 0o755, "all users of this machine can read"),
    ):
        store = DirectoryStore(tmp_path / name, mode=mode)
        await store.open()
        await store.put("data/one", b"1")
        await store.close()
        assert words in await told_of_permissions(tmp_path / name)


async def test_the_doctor_leaves_an_empty_mount_point_empty_and_makes_no_store_where_none_may_be(
    tmp_path: Path,
) -> None:
    root = tmp_path / "store"
    root.mkdir()
    assert all(one.passed for one in await store_checks(f"file://{root}"))
    assert os.listdir(root) == []
    failed = [one for one in await store_checks(f"file://{root}", create=False) if not one.passed]
    assert [one.name for one in failed] == ["store: open"]
    assert "may not be mounted" in failed[0].detail
    assert os.listdir(root) == []


async def test_the_doctor_reports_a_store_directory_that_is_a_file(tmp_path: Path) -> None:
    root = tmp_path / "store"
    root.write_bytes(b"")
    failed = [one for one in await store_checks(f"file://{root}") if not one.passed]
    assert [one.name for one in failed] == ["store: open"]
    assert str(root) in failed[0].detail
    assert root.is_file()


async def test_the_doctor_reports_a_store_directory_that_cannot_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: str) -> list[str]:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)

    root = tmp_path / "store"
    root.mkdir()
    monkeypatch.setattr(os, "listdir", refuse)
    failed = [one for one in await store_checks(f"file://{root}") if not one.passed]
    assert [one.name for one in failed] == ["store: open"]
    assert "give this user the permission" in failed[0].detail
    assert root.is_dir(), "it is not taken for one that the checks made"
