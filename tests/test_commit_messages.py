"""Commit messages since a fixed commit, and the hook that checks each as it is made (``tools/commit_messages.py``)."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.checkouts import ROOT, git
from tools.commit_messages import BASE, changes_code, faults, reason_to_skip, since, typed

GOOD = "replication: fence followers of an older epoch\n\nA follower that was cut off could still commit."
TOOLS = ("commit_messages.py", "commit-msg", "install-hooks.sh")


def test_commits_since_the_base_have_messages_of_the_one_form() -> None:
    why = reason_to_skip(BASE, ROOT)
    if why:
        pytest.skip(f"commit messages are not checked: {why}")
    found = [
        f"{commit.name[:12]} {commit.message.splitlines()[0]}: {fault}"
        for commit in since(BASE, ROOT)
        for fault in faults(commit.message, commit.files)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("message", "files", "told"),
    [
        (GOOD, ["app/a.py"], ""),
        ("docs: name the proofs of a broker", ["docs/proof.md", "README.md"], ""),
        ("tests, handlers: mend the long suites\n\nWhy.", ["tests/a.py"], ""),
        ("librdkafka suite: need one broker\n\nWhy.", ["tests/a.py"], ""),
        ("log: need " + "x" * 62, [], ""),
        ("log: need " + "x" * 63, [], "The subject has 73 characters."),
        ("Fence followers", [], "not of the form"),
        ("replication:fence followers", [], "not of the form"),
        ("a b c d: fence followers", [], "not of the form"),
        ("Merge branch 'x'", [], "not of the form"),
        ("log: fenced followers", [], "imperative"),
        ("log: fencing followers", [], "imperative"),
        ("log: fences followers", [], "imperative"),
        ("log: Fence followers", [], "imperative"),
        ("log: 3 followers", [], "imperative"),
        ("log: fence followers\nof an epoch", [], "The second line is not empty."),
        ("log: fence followers", ["docs/a.md", "app/a.py"], "no body"),
        ("log: fence followers\n\n", ["Makefile"], "no body"),
    ],
)
def test_a_message_is_judged_by_its_form(message: str, files: list[str], told: str) -> None:
    found = list(faults(message, files))
    assert (len(found) == 1 and told in found[0]) if told else not found


@pytest.mark.parametrize(
    ("file", "is_code"),
    [
        ("app/a.py", True),
        (".ci/run", True),
        ("Makefile", True),
        ("infra/a.tf", True),
        ("docs/a.svg", False),
        ("a.md", False),
    ],
)
def test_documents_and_data_are_no_code(file: str, is_code: bool) -> None:
    assert changes_code([file]) is is_code


def test_comments_and_the_diff_of_an_editor_are_no_part_of_a_message() -> None:
    cut = "# ------------------------ >8 ------------------------"
    assert typed(f"log: fence followers\n\nWhy.\n# Changes:\n{cut}\ndiff --git a b\n") == "log: fence followers\n\nWhy."


# --- the hook, in repositories of the test's own -------------------------------------------------------------------------


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    root = tmp_path / "clone"
    root.mkdir()
    git(root, "init", "-q", "-b", "main")
    put_tools(root)
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "tools: check commit messages\n\nThe first commit.")
    return root


def put_tools(root: Path) -> None:
    (root / "tools").mkdir()
    for name in TOOLS:
        shutil.copy(ROOT / "tools" / name, root / "tools" / name)


def install(root: Path, **environment: str) -> str:
    done = subprocess.run(
        ["bash", str(root / "tools" / "install-hooks.sh")],
        env={**os.environ, "GIT_CONFIG_GLOBAL": os.devnull, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def commit(root: Path, message: str, file: str = "app.py") -> str:
    """Commit a change of ``file``. Returns the complaint of the hook; empty if the commit was made."""
    path = root / file
    path.write_text(f"{path.read_text() if path.exists() else ''}\n")
    git(root, "add", file)
    try:
        git(root, "commit", "-q", "-m", message)
    except subprocess.CalledProcessError as error:
        return str(error.stderr)
    return ""


def test_an_installed_hook_refuses_bad_messages_and_takes_good_ones(clone: Path) -> None:
    assert commit(clone, "Bad before the hook") == ""
    assert "installed the commit-msg hook" in install(clone)
    assert install(clone) == ""
    before = git(clone, "rev-parse", "HEAD")
    assert "not of the form" in commit(clone, "Change things")
    assert "no body" in commit(clone, "log: change things")
    assert "imperative" in commit(clone, "log: changed things\n\nWhy.")
    assert git(clone, "rev-parse", "HEAD") == before
    assert commit(clone, GOOD) == ""
    assert commit(clone, "docs: name things", "README.md") == ""


def test_the_hook_serves_every_worktree_of_a_clone(clone: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    git(clone, "worktree", "add", "-q", "-b", "other", str(other))
    assert "installed" in install(other)
    assert install(clone) == ""
    for root in (clone, other):
        assert "not of the form" in commit(root, "Change things")
        assert commit(root, GOOD) == ""


def test_merges_and_commits_to_be_squashed_pass_the_hook(clone: Path) -> None:
    install(clone)
    git(clone, "checkout", "-q", "-b", "side")
    assert commit(clone, GOOD, "side.py") == ""
    git(clone, "checkout", "-q", "main")
    assert commit(clone, GOOD) == ""
    git(clone, "merge", "-q", "--no-edit", "side")
    assert commit(clone, "fixup! replication: fence followers of an older epoch") == ""
    assert [one.message for one in since("HEAD~1", clone)] == ["fixup! replication: fence followers of an older epoch"]


def test_a_checkout_of_before_the_script_can_be_committed_to(clone: Path) -> None:
    install(clone)
    git(clone, "rm", "-q", "-r", "tools")
    assert commit(clone, "Anything goes") == ""


def test_an_archive_without_git_is_left_as_it_is(clone: Path, tmp_path: Path) -> None:
    archive = tmp_path / "archive"
    archive.mkdir()
    put_tools(archive)
    assert install(archive, GIT_CEILING_DIRECTORIES=str(tmp_path)) == ""
    inside = clone / "vendor"
    inside.mkdir()
    put_tools(inside)
    assert install(inside) == ""
    assert not (clone / ".git" / "hooks" / "commit-msg").exists()
    bare = tmp_path / "bin"
    bare.mkdir()
    for name in ("bash", "dirname"):
        (bare / name).symlink_to(str(shutil.which(name)))
    assert install(clone, PATH=str(bare)) == ""
    assert not (clone / ".git" / "hooks" / "commit-msg").exists()


def test_a_users_own_hook_stays(clone: Path, tmp_path: Path) -> None:
    hook = clone / ".git" / "hooks" / "commit-msg"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\n")
    assert "is your own" in install(clone)
    assert hook.read_text() == "#!/bin/sh\n"
    hook.unlink()
    git(clone, "config", "core.hooksPath", str(tmp_path / "everywhere"))
    assert "core.hooksPath" in install(clone)
    assert not (tmp_path / "everywhere" / "commit-msg").exists()


def test_an_older_hook_of_firn_is_replaced(clone: Path) -> None:
    install(clone)
    hook = clone / ".git" / "hooks" / "commit-msg"
    hook.write_text(f"{hook.read_text()}# older\n")
    assert "installed" in install(clone)
    assert hook.read_text() == (ROOT / "tools" / "commit-msg").read_text()


def test_planted_bad_commits_are_found_in_history(clone: Path) -> None:
    base = git(clone, "rev-parse", "HEAD")
    assert commit(clone, GOOD) == ""
    assert commit(clone, "Change things") == ""
    assert commit(clone, "docs: name things", "README.md") == ""
    found = {one.message: list(faults(one.message, one.files)) for one in since(base, clone)}
    assert [len(found[message]) for message in ("docs: name things", "Change things", GOOD)] == [0, 2, 0]


def test_a_shallow_clone_skips_the_check_with_a_reason(clone: Path, tmp_path: Path) -> None:
    base = git(clone, "rev-parse", "HEAD")
    assert commit(clone, GOOD) == ""
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "-q", "--depth", "1", f"file://{clone}", str(shallow))
    assert reason_to_skip(base, clone) == ""
    assert "shallow clone" in reason_to_skip(base, shallow)
    assert "shallow clone" in reason_to_skip(base, tmp_path)
