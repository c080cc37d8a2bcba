"""Writes the commit into every sdist and wheel, as ``app/COMMIT``, and the runbooks; hatchling runs it (``pyproject.toml``).

A wheel is often built from an sdist, where there is no git any more: the file that the sdist carries is taken over. An editable
installation gets no file, because its commit changes with the checkout.
"""

from __future__ import annotations

import runpy
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CommitHook(BuildHookInterface[Any]):
    PLUGIN_NAME = "custom"
    _folder: tempfile.TemporaryDirectory[str] | None = None

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        root = Path(self.root)
        self._add_runbooks(root, build_data)
        module = runpy.run_path(str(root / "app" / "machine" / "commit.py"))
        place = f"app/{module['FILE']}"
        if (root / place).is_file() and not (root / ".git").exists():
            return  # An unpacked sdist, whose packages are taken whole.
        commit = module["commit_of_checkout"](root)
        if commit is None:
            self.app.display_warning(
                "firn --version of what is built here will not know its commit: git does not tell it."
            )
            return
        self._folder = tempfile.TemporaryDirectory(prefix="firn-commit-")
        file = Path(self._folder.name) / module["FILE"]
        file.write_text(f"{commit}\n")
        file.chmod(0o644)
        build_data["force_include"][str(file)] = place

    @staticmethod
    def _add_runbooks(root: Path, build_data: dict[str, Any]) -> None:
        """The runbooks, which the console shows. An unpacked sdist has them in their place already."""
        place = "app/http/console/runbooks"
        if not (root / place).is_dir():
            build_data["force_include"][str(root / "docs" / "runbooks")] = place

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None
