"""Finds and reads botocore's service descriptions quickly.

botocore searches the folders of all four hundred services twice, and decodes JSON with the standard library. Both together are
a sixth of the cost of creating a client, and a store process creates one before its first response.
"""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import Any

import msgspec
from botocore.loaders import JSONFileLoader, Loader


class _JsonFiles(JSONFileLoader):  # type: ignore[misc] # botocore has no types
    """Files decoded by msgspec; a dict keeps the order that botocore relies on."""

    def load_file(self, file_path: str) -> Any:
        plain, packed = Path(f"{file_path}.json"), Path(f"{file_path}.json.gz")
        if plain.is_file():
            return msgspec.json.decode(plain.read_bytes())
        return msgspec.json.decode(gzip.decompress(packed.read_bytes())) if packed.is_file() else None


class ServiceModels(Loader):  # type: ignore[misc] # botocore has no types
    """A loader that does not search the folders of other services."""

    def __init__(self, data_path: str | None) -> None:
        """``data_path``: folders to look in first, as AWS_DATA_PATH names them."""
        folders = (
            [os.path.expanduser(os.path.expandvars(one)) for one in data_path.split(os.pathsep)] if data_path else []
        )
        super().__init__(extra_search_paths=folders, file_loader=_JsonFiles())

    def list_available_services(self, type_name: str) -> list[str]:
        """The services that there are folders of; loading one shows whether it has the wanted model."""
        found = {name for folder in self.search_paths if Path(folder).is_dir() for name in os.listdir(folder)}
        return sorted(found)
