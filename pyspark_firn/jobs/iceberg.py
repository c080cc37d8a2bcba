"""The Iceberg tables of an archive: the meaning of their values, their progress, and opening them in a catalog."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from obstore.fsspec import FsspecStore
from pyarrow.fs import FileSystem, FSSpecHandler, PyFileSystem
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform

from app.core.errors import ConfigError, FirnError, clause
from app.objectstore.location import DirectoryLocation, S3Location, parse_store_url
from pyspark_firn.jobs.archive_plan import decode_document
from pyspark_firn.jobs.parquet_files import COLUMNS_WITH_STATISTICS
from pyspark_firn.jobs.targets import CLIENT_OPTIONS, bucket_config, credentials_of
from pyspark_firn.jobs.values import ValueShape, decode_shape

PROPERTY_PREFIX: Final = "firn.archive."

STORE_PROPERTY: Final = "firn.store"
SHAPE_PROPERTY: Final = f"{PROPERTY_PREFIX}shape"
DAY: Final = "timestamp_day"


def opened_table(name: str, catalog: Mapping[str, str]) -> Table | None:
    """The table ``namespace.table``; None if there is none. Raises: ConfigError."""
    namespace, _, table = name.rpartition(".")
    if not namespace or not table:
        raise ConfigError(f"{name!r} is no table of a catalog: write namespace.table.")
    with _asked(name):
        loaded = load_catalog("firn", **catalog)
        found = loaded.load_table(name) if loaded.table_exists(name) else None
    if found is not None:
        _check_partitioning(found, name)
    return found


def _check_partitioning(table: Table, name: str) -> None:
    """Raises: ConfigError if files cannot say which partition they are of. Pyiceberg would take them for one without a value."""
    for field in table.spec().fields:
        column = table.schema().find_column_name(field.source_id) or ""
        if column not in COLUMNS_WITH_STATISTICS:
            raise ConfigError(
                f"The table {name} is partitioned by {column!r}: an archive records the least and greatest"
                f" values only of {', '.join(COLUMNS_WITH_STATISTICS)}. Partition it by one of them."
            )


def made_table(name: str, catalog: Mapping[str, str], schema: pa.Schema, shape: ValueShape | None) -> Table:
    """A new table of these columns, partitioned by the day of ``timestamp``. Its properties record the meaning of values.

    Raises: ConfigError.
    """
    properties = {"write.parquet.compression-codec": "zstd"}
    if shape is not None:
        properties[SHAPE_PROPERTY] = shape.encode().decode()
    with _asked(name):
        loaded = load_catalog("firn", **catalog)
        loaded.create_namespace_if_not_exists(name.rpartition(".")[0])
        with (
            loaded.create_table_transaction(name, schema, properties=properties) as transaction,
            transaction.update_spec() as spec,
        ):
            spec.add_field("timestamp", DayTransform(), DAY)
        return loaded.load_table(name)


@contextmanager
def _asked(name: str) -> Iterator[None]:
    """A catalog is a foreign driver, and its errors have no common class. Raises: ConfigError."""
    try:
        yield
    except FirnError:
        raise
    except Exception as error:
        said = (str(error) or type(error).__name__).partition("\n")[0]
        raise ConfigError(f"The catalog of {name} refused or failed: {clause(said)}.") from error


def shape_of(table: Table) -> ValueShape | None:
    """How a table's values were decoded; None if they are as they were. Raises: CorruptionError."""
    text = table.properties.get(SHAPE_PROPERTY)
    return decode_shape(decode_document(text.encode(), f"{SHAPE_PROPERTY} of {table.name()}")) if text else None


def address_of(table: Table) -> str:
    """Where a table's files go, as an address of a store."""
    location = table.location()
    return location if "://" in location else f"file://{location}"


def add_files(table: Table, paths: Sequence[str], topic_id: str, ends: Mapping[int, int]) -> None:
    """Files and how far they reach, in one commit.

    Raises, with nothing added: ConfigError (another writer was quicker, or the table's columns are others by now).
    """
    forbid_rebasing(table)
    try:
        with table.transaction() as transaction:
            if paths:
                transaction.add_files(list(paths), check_duplicate_files=True)
            transaction.set_properties(property_names(topic_id, ends))
    except (CommitFailedException, FileNotFoundError) as error:
        # The quicker run removes the files of the slower ones: they can be gone before this commit is tried.
        name = ".".join(table.name())
        raise ConfigError(
            f"Another writer changed {name} meanwhile. Nothing was added: run the job again ({clause(error)})."
        ) from error
    except ValueError as error:
        said = str(error).partition("\n")[0]
        raise ConfigError(
            f"The table {'.'.join(table.name())} refuses the archive's files. Check its columns: {clause(said)}."
        ) from error


def forbid_rebasing(table: Table) -> None:
    """Make a commit to ``table`` fail if anybody was quicker.

    Pyiceberg would try again on top of the other's snapshot, with offsets that were right before it. The setting is changed in
    this object only: nothing of it is written.
    """
    table.metadata.properties["commit.retry.num-retries"] = "0"


def local_catalog(folder: Path) -> dict[str, str]:
    """The catalog when none is named: SQLite in ``folder``, tables beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    return {"type": "sql", "uri": f"sqlite:///{folder}/catalog.db", "warehouse": folder.resolve().as_uri()}


def warehouse_at(url: str) -> dict[str, str]:
    """Properties of a catalog whose new tables go to an address like a store's. Raises: ConfigError."""
    location = parse_store_url(url)
    if isinstance(location, DirectoryLocation):
        return {"warehouse": location.path.as_uri()}
    return {"warehouse": str(location), "py-io-impl": f"{__name__}.{StoreFileIO.__name__}", STORE_PROPERTY: url}


class StoreFileIO(PyArrowFileIO):
    """Files of Iceberg in S3, reached and encrypted as the property ``firn.store`` says, an address like a store's.

    Arrow's own S3 has no word for encryption.
    """

    def _initialize_fs(self, scheme: str, netloc: str | None = None) -> FileSystem:
        location = parse_store_url(self.properties[STORE_PROPERTY])
        if scheme != "s3" or not isinstance(location, S3Location):
            return super()._initialize_fs(scheme, netloc)
        reached = FsspecStore(
            "s3",
            config=bucket_config(location),
            client_options=CLIENT_OPTIONS,
            credential_provider=credentials_of(location),
        )
        return PyFileSystem(FSSpecHandler(reached))


def property_names(topic_id: str, ends: Mapping[int, int]) -> dict[str, Any]:
    """How a table says how far it has come."""
    return {f"{PROPERTY_PREFIX}{topic_id}.{partition}": str(end) for partition, end in ends.items()}


def offsets_of(table: Table, topic_id: str) -> dict[int, int]:
    """Next offset of each partition of a topic that the table holds."""
    prefix = f"{PROPERTY_PREFIX}{topic_id}."
    return {
        int(name.removeprefix(prefix)): int(value)
        for name, value in table.properties.items()
        if name.startswith(prefix)
    }
