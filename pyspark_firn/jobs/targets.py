"""Where the files of an archive go: a folder, a bucket, or wherever the catalog of an Iceberg table says.

A file has no name until it is whole. In a folder it is written beside its place under a name that readers pass over, held by a
lock, and moved; a killed writer leaves a file without a lock (``sweep``). For any other target it is written to an
unnamed file of this machine, which goes with its process, and sent in one piece.
"""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, Protocol

import obstore
from botocore.session import Session
from obstore.exceptions import BaseError
from obstore.store import S3Store as Bucket

from app.core.errors import ConfigError, CorruptionError, StorageUnavailable, clause
from app.objectstore.directory_work import storage_error
from app.objectstore.location import DirectoryLocation, S3Location, parse_store_url
from pyspark_firn.jobs.archive_plan import PENDING_SUFFIX, pending_path

if TYPE_CHECKING:
    from obstore.store import ClientConfig, S3Config, S3Credential

CONNECT_TIMEOUT: Final = timedelta(seconds=5)
REQUEST_TIMEOUT: Final = timedelta(seconds=60)
CREDENTIALS_MEND: Final = "set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or give this machine a role"
CREDENTIAL_CODES: Final = frozenset({"InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "InvalidToken"})
LIST: Final = "s3:ListBucket"
"""The one action here that is allowed on a bucket, not on objects."""
CREDENTIALS_KEPT: Final = timedelta(seconds=60)
"""How long obstore uses a copy of them."""
REGION_DEFAULT: Final = "us-east-1"
"""The region of servers other than AWS; a signature must name a region."""
TEMPORARY_SUFFIX: Final = ".tmp"
_FILE_ENDINGS: Final = (".parquet", f".parquet{PENDING_SUFFIX}")


@contextmanager
def writing(what: str) -> Iterator[None]:
    """For a block that writes: its errors name the file. Raises: StorageUnavailable in the place of OSError."""
    try:
        yield
    except OSError as error:
        # Arrow puts words of its own around those of the error.
        plain = OSError(error.errno, os.strerror(error.errno)) if error.errno else error
        raise storage_error(plain, f"Could not write {what}") from error


def temporary_place() -> str:
    """The words for an unnamed file in a sentence."""
    return f"temporary files in {tempfile.gettempdir()} (TMPDIR names another place)"


class NewFile(Protocol):
    """A file under way."""

    @property
    def name(self) -> str:
        """The name of the file being written, for people."""
        ...

    @property
    def sink(self) -> str | IO[bytes]:
        """The path or file to write to."""
        ...

    def publish(self) -> int:
        """Everything is written and closed, or flushed: give it its name. Answers its bytes. Raises: StorageUnavailable."""
        ...

    def discard(self) -> None:
        """Give up the unfinished file."""
        ...


class Target(Protocol):
    """A root below which files are made."""

    def create(self, path: str) -> NewFile:
        """A file that will be at ``path``, in the place of one that may be there. Raises: StorageUnavailable."""
        ...


def target_at(url: str, io_properties: Mapping[str, str] | None = None) -> Target:
    """The target at an address like a store's; ``io_properties`` are an Iceberg table's, whose files go there.

    Raises: ConfigError.
    """
    if io_properties is not None and not url.startswith("file:"):
        return TableFiles(url, io_properties)
    location = parse_store_url(url)
    return Folder(location.path) if isinstance(location, DirectoryLocation) else BucketPrefix(location)


# --- a folder -------------------------------------------------------------------------------------------------------


class Folder:
    """Target in a directory."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def create(self, path: str) -> HeldFile:
        with writing(str(self._root / path)):
            return HeldFile(self._root / path)


class HeldFile:
    """A file under way in a folder, locked for as long as its writer lives, which shows under its name when it is whole."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._written = path.with_name(f"_{path.name}.{uuid.uuid4().hex}{TEMPORARY_SUFFIX}")
        while True:
            self._lock = os.open(self._written, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
            with suppress(OSError):  # A file system without locks keeps the files of killed writers.
                fcntl.flock(self._lock, fcntl.LOCK_EX)
            if os.fstat(self._lock).st_nlink:
                break
            os.close(self._lock)  # A sweep removed it before it was locked.

    @property
    def name(self) -> str:
        return str(self._path)

    @property
    def sink(self) -> str:
        return str(self._written)

    def publish(self) -> int:
        with writing(self.name):
            return self._publish()

    def _publish(self) -> int:
        size = os.fstat(self._lock).st_size
        # After this, the caller may record that the file exists: it survives a power cut.
        os.fsync(self._lock)
        self._written.rename(self._path)
        os.close(self._lock)
        self._lock = -1
        _sync_folder(self._path.parent)
        return size

    def discard(self) -> None:
        if self._lock >= 0:  # It may have its name already, when something behind it has failed.
            self._written.unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = -1


def _sync_folder(path: Path) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def sweep(url: str, folder: str) -> int:
    """Remove files of killed writers in the folders of ``folder`` at an address. Return their number. Raises: OSError."""
    if not url.startswith("file:"):
        return 0  # Only a folder shows unfinished files.
    location = parse_store_url(url)
    assert isinstance(location, DirectoryLocation)
    return sum(_removed(path) for path in (location.path / folder).glob(f"*/_*{TEMPORARY_SUFFIX}"))


def sweep_folder(folder: Path, name: str) -> None:
    """Remove files that killed writers of a file ``name`` left in a folder. Raises: OSError."""
    for path in folder.glob(f"_{name}.*{TEMPORARY_SUFFIX}"):
        _removed(path)


def files_below(url: str, folder: str) -> Iterator[str]:
    """Paths, below a folder at an address, of the Parquet files in its folders, pending ones too. Raises: StorageUnavailable."""
    location = parse_store_url(url)
    if isinstance(location, DirectoryLocation):
        root = location.path / folder
        for kind in ("*/*.parquet", f"*/_*.parquet{PENDING_SUFFIX}"):
            yield from (path.relative_to(root).as_posix() for path in root.glob(kind))
    else:
        yield from BucketPrefix(location).files_below(folder)


def remove_files(url: str, folder: str, paths: Sequence[str]) -> None:
    """Remove files that ``files_below`` has named; one that is not there is removed already. Raises: StorageUnavailable."""
    location = parse_store_url(url)
    if isinstance(location, DirectoryLocation):
        for path in paths:
            with writing(str(location.path / folder / path)):
                (location.path / folder / path).unlink(missing_ok=True)
    elif paths:
        BucketPrefix(location).remove_files(folder, paths)


def show_files(url: str, folder: str, paths: Sequence[str]) -> None:
    """Give pending files, named by ``paths`` as they will be, their names. One that has its name already stays.

    Raises: CorruptionError if there is none of either name; StorageUnavailable.
    """
    location = parse_store_url(url)
    if not isinstance(location, DirectoryLocation):
        BucketPrefix(location).show_files(folder, paths)
        return
    root = location.path / folder
    for path in paths:
        with writing(str(root / path)):
            try:
                (root / pending_path(path)).rename(root / path)
            except FileNotFoundError:
                if not (root / path).exists():
                    raise missing_file(f"{root}/{path}") from None
    for parent in {(root / path).parent for path in paths}:
        with writing(str(parent)):
            _sync_folder(parent)


def remove_written(url: str, folder: str, paths: Sequence[str], io_properties: Mapping[str, str]) -> None:
    """Remove files that were written for an Iceberg table and that it did not take. Raises: StorageUnavailable."""
    if url.startswith("file:"):
        remove_files(url, folder, paths)
        return
    from pyiceberg.io import load_file_io

    files = load_file_io(dict(io_properties), url)
    for path in paths:
        address = f"{url}/{folder}/{path}"
        with writing(address), suppress(FileNotFoundError):
            files.delete(address)


def missing_file(path: str) -> CorruptionError:
    return CorruptionError(f"{path} is gone, which a commit of the archive names: put it back, or name another target.")


def _removed(path: Path) -> bool:
    """Whether an unfinished file had no writer, and is removed."""
    with suppress(FileNotFoundError, PermissionError):  # Another was quicker, or it is another user's.
        opened = os.open(path, os.O_RDWR)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False  # Its writer lives, or the file system has no locks and cannot tell.
        else:
            path.unlink()
            return True
        finally:
            os.close(opened)
    return False


# --- anything else --------------------------------------------------------------------------------------------------


class BucketPrefix:
    """Target in S3, by all that a store's address says: endpoint, region, path style, encryption."""

    def __init__(self, location: S3Location) -> None:
        self._location = location
        self._bucket = Bucket(
            location.bucket,
            config=bucket_config(location),
            client_options=CLIENT_OPTIONS,
            credential_provider=credentials_of(location),
        )

    def create(self, path: str) -> NewFile:
        return _UnnamedFile(lambda file: self._send(path, file))

    def _send(self, path: str, file: IO[bytes]) -> None:
        try:
            obstore.put(self._bucket, f"{self._location.prefix}{path}", file)
        except (BaseError, OSError) as error:
            raise self._unavailable(error, f"{path} cannot be written", "s3:PutObject") from error

    def files_below(self, folder: str) -> Iterator[str]:
        """As the function. Raises: StorageUnavailable."""
        prefix = f"{self._location.prefix}{folder}/"
        try:
            for page in obstore.list(self._bucket, prefix):
                yield from (one["path"].removeprefix(prefix) for one in page if one["path"].endswith(_FILE_ENDINGS))
        except (BaseError, OSError) as error:
            raise self._unavailable(error, f"{folder} cannot be listed", LIST) from error

    def remove_files(self, folder: str, paths: Sequence[str]) -> None:
        """As the function. Raises: StorageUnavailable."""
        try:
            obstore.delete(self._bucket, [f"{self._location.prefix}{folder}/{path}" for path in paths])
        except FileNotFoundError:
            return
        except (BaseError, OSError) as error:
            raise self._unavailable(error, f"{folder} has files that cannot be removed", "s3:DeleteObject") from error

    def show_files(self, folder: str, paths: Sequence[str]) -> None:
        """As the function. A bucket cannot rename, so they are copied in it and removed. Raises: as the function."""
        for path in paths:
            try:
                self._show(f"{self._location.prefix}{folder}/", path)
            except FileNotFoundError:
                raise missing_file(f"{self._location}/{folder}/{path}") from None
            except (BaseError, OSError) as error:
                raise self._unavailable(error, f"{folder}/{path} cannot be copied", "s3:GetObject") from error
        if paths:
            self.remove_files(folder, [pending_path(path) for path in paths])

    def _show(self, root: str, path: str) -> None:
        try:
            obstore.copy(self._bucket, f"{root}{pending_path(path)}", f"{root}{path}")
        except FileNotFoundError:
            obstore.head(self._bucket, f"{root}{path}")  # Another was quicker.

    def _unavailable(self, error: Exception, what: str, action: str) -> StorageUnavailable:
        """The error in a sentence: obstore's own has the whole request in it."""
        text = str(error).partition("\n")[0]
        found = re.search("<Code>([A-Za-z]+)</Code>", text)
        if found is not None and found[1] == "AccessDenied":
            bucket, prefix = self._location.bucket, self._location.prefix
            text = f"{found[1]}; allow {action} on arn:aws:s3:::{bucket}" + (f"/{prefix}*" if action != LIST else "")
        elif found is not None and found[1] in CREDENTIAL_CODES:
            text = f"{found[1]}; {CREDENTIALS_MEND}"
        return StorageUnavailable(f"{self._location}/{what}: {clause(text)}.")


class TableFiles:
    """Target of an Iceberg table: its catalog's properties say how files are written."""

    def __init__(self, address: str, io_properties: Mapping[str, str]) -> None:
        from pyiceberg.io import load_file_io

        self._address = address
        self._io = load_file_io(dict(io_properties), address)

    def create(self, path: str) -> NewFile:
        return _UnnamedFile(lambda file: self._send(path, file))

    def _send(self, path: str, file: IO[bytes]) -> None:
        address = f"{self._address}/{path}"
        with writing(address), self._io.new_output(address).create(overwrite=True) as output:
            shutil.copyfileobj(file, output)


class _UnnamedFile:
    def __init__(self, send: Callable[[IO[bytes]], None]) -> None:
        self._send = send
        with writing(temporary_place()):
            self._file: IO[bytes] = tempfile.TemporaryFile(prefix="firn-archive-")  # noqa: SIM115 - it outlives this call

    @property
    def name(self) -> str:
        return temporary_place()

    @property
    def sink(self) -> str | IO[bytes]:
        return self._file

    def publish(self) -> int:
        with writing(self.name):
            size = self._file.seek(0, os.SEEK_END)
            self._file.seek(0)
        with self._file:
            self._send(self._file)
        return size

    def discard(self) -> None:
        with suppress(OSError):  # It would write its buffer, and there may be no room.
            self._file.close()


CLIENT_OPTIONS: Final[ClientConfig] = {
    "allow_http": True,
    "connect_timeout": CONNECT_TIMEOUT,
    "timeout": REQUEST_TIMEOUT,
}


def bucket_config(location: S3Location) -> S3Config:
    """How obstore reaches an address of a store, and how it encrypts."""
    config: S3Config = {
        "region": location.region or Session().get_config_variable("region") or REGION_DEFAULT,
        "virtual_hosted_style_request": not location.path_style,
    }
    if location.endpoint is not None:
        scheme, _, host = location.endpoint.partition("://")
        config["endpoint"] = location.endpoint if location.path_style else f"{scheme}://{location.bucket}.{host}"
    if location.sse is not None:
        config["server_side_encryption"] = location.sse
    if location.kms_key_id is not None:
        config["sse_kms_key_id"] = location.kms_key_id
    return config


def credentials_of(location: S3Location) -> Callable[[], S3Credential]:
    """A source of credentials from the usual AWS chain, as the broker finds them. Raises: ConfigError."""
    found = Session().get_credentials()
    if found is None:
        raise ConfigError(f"There are no credentials for {location}: {CREDENTIALS_MEND}.")

    def provide() -> S3Credential:
        frozen = found.get_frozen_credentials()  # Renewed in time by botocore itself.
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(UTC) + CREDENTIALS_KEPT,
        }

    return provide
