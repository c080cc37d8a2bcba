"""Store addresses: ``file:///path?mode=0750`` and ``s3://bucket/prefix?option=value``. Nothing is opened here.

Tests: ``tests/objectstore/test_url.py``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias
from urllib.parse import parse_qsl, unquote, urlsplit

from app.core.errors import ConfigError, clause
from app.objectstore.api import InvalidKey
from app.objectstore.keys import check_key

ServerSideEncryption: TypeAlias = Literal["AES256", "aws:kms"]

_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_MODE: Final = re.compile(r"0?7[0-7][0-7]")
"""The owner needs all rights."""
_REGION: Final = re.compile(r"[a-z0-9-]+")
_OPTIONS: Final = ("endpoint", "region", "path_style", "sse", "kms_key_id")
_EXAMPLES: Final = "write file:///absolute/path or s3://bucket/prefix"
_BUCKET_PREFIX_CHARS_MAX: Final = 200
"""With ``keys.KEY_CHARS_MAX`` within S3's 1,024 bytes of a key."""


@dataclass(frozen=True, slots=True)
class DirectoryLocation:
    """A directory of a file system."""

    path: Path
    mode: int | None = None
    """Permissions of directories that are made in it; None: the store's own."""

    def __str__(self) -> str:
        return f"file://{self.path}" + ("" if self.mode is None else f"?mode={self.mode:04o}")


@dataclass(frozen=True, slots=True)
class S3Location:
    """A prefix of a bucket, and how to reach it. Credentials are not part of it: they come from the usual AWS chain."""

    bucket: str
    prefix: str = ""
    """Ends with a slash unless it is empty."""
    endpoint: str | None = None
    """URL of an S3-compatible server; None is AWS."""
    region: str | None = None
    """None: from the environment or the profile."""
    path_style: bool = False
    """``endpoint/bucket/key`` instead of ``bucket.endpoint/key``."""
    sse: ServerSideEncryption | None = None
    """Encryption to ask for with every write; None: the bucket's default."""
    kms_key_id: str | None = None

    def __str__(self) -> str:
        return f"s3://{self.bucket}/{self.prefix.rstrip('/')}".rstrip("/")

    @property
    def is_directory_bucket(self) -> bool:
        """Whether it is a bucket of S3 Express One Zone: their names, and no others, end like this."""
        return self.bucket.endswith("--x-s3")


StoreLocation: TypeAlias = DirectoryLocation | S3Location


def check_locations(store: str, wal_store: str) -> None:
    """Check the addresses of the main store and of the store of write-ahead logs, which may be empty. Raises: ConfigError."""
    main = parse_store_url(store)
    if not wal_store:
        return
    wal = parse_store_url(wal_store)
    if _place(main) == _place(wal):
        raise ConfigError(
            f"{wal} is both the store and the WAL store: leave --wal-store (firn.wal.store.url) out, or name another place."
        )


def _place(location: StoreLocation) -> tuple[object, ...]:
    if isinstance(location, DirectoryLocation):
        return (location.path,)
    return location.bucket, location.prefix, location.endpoint


def parse_store_url(url: str) -> StoreLocation:
    """Parse ``--store`` or ``--wal-store``.

    Raises: ConfigError, which names the fault and a valid address.
    """
    try:
        parts = urlsplit(url)
    except ValueError as error:
        raise ConfigError(f"The store URL {url!r} cannot be read ({clause(error)}); {_EXAMPLES}.") from error
    if parts.username is not None or parts.password is not None:
        raise ConfigError(
            "A store URL must not contain credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile."
        )
    if parts.fragment:
        raise ConfigError(f"The store URL {url!r} has a '#' part, which has no meaning; {_EXAMPLES}.")
    match parts.scheme:
        case "file":
            return _parse_file(url, parts.netloc, parts.path, parts.query)
        case "s3":
            return _parse_s3(url, parts.netloc, parts.path, parts.query)
        case "":
            raise ConfigError(f"The store URL {url!r} has no scheme; {_EXAMPLES}.")
        case scheme:
            raise ConfigError(f"The store URL {url!r} has the unknown scheme {scheme!r}; {_EXAMPLES}.")


def _parse_file(url: str, host: str, path: str, query: str) -> DirectoryLocation:
    if host not in ("", "localhost"):
        raise ConfigError(f"The store URL {url!r} names a host or a relative path; write file:///absolute/path.")
    mode = None
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name != "mode" or mode is not None or _MODE.fullmatch(value) is None:
            raise ConfigError(
                f"The store URL {url!r} has options, but a directory has none besides mode, the permissions of its directories. "
                "Write one like mode=0750."
            )
        mode = int(value, 8)
    decoded = unquote(path)
    if not decoded.startswith("/") or "\0" in decoded:
        raise ConfigError(f"The store URL {url!r} has no absolute path; write file:///absolute/path.")
    if decoded.strip("/") == "":
        raise ConfigError("The store cannot be the root directory; write file:///absolute/path.")
    return DirectoryLocation(Path(decoded), mode)


def _parse_s3(url: str, bucket: str, path: str, query: str) -> S3Location:
    if not bucket:
        raise ConfigError(f"The store URL {url!r} names no bucket; write s3://bucket/prefix.")
    if _BUCKET.fullmatch(bucket) is None:
        raise ConfigError(
            f"{bucket!r} is not a bucket name: 3 to 63 of a-z, 0-9, '.' and '-'; write s3://bucket/prefix."
        )
    prefix = unquote(path).strip("/")
    if prefix:
        try:
            check_key(prefix)
        except InvalidKey as error:
            raise ConfigError(f"The prefix {prefix!r} of the store URL has parts other than [A-Za-z0-9._-].") from error
        if len(prefix) >= _BUCKET_PREFIX_CHARS_MAX:
            raise ConfigError(f"The prefix of the store URL has {len(prefix)} characters; at most 199 fit.")
        prefix += "/"
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if name not in _OPTIONS:
            raise ConfigError(f"{name!r} is not an option of an s3 store URL; the options are {', '.join(_OPTIONS)}.")
        if name in options:
            raise ConfigError(f"The option {name!r} of the store URL is given twice.")
        if not value:
            raise ConfigError(f"The option {name!r} of the store URL has no value.")
        options[name] = value
    endpoint = options.get("endpoint")
    if endpoint is not None:
        if (
            "://" not in endpoint
            or urlsplit(endpoint).scheme not in ("http", "https")
            or not urlsplit(endpoint).hostname
        ):
            raise ConfigError(
                f"endpoint={endpoint} is not a URL; write endpoint=http://host:port or https://host:port."
            )
        endpoint = endpoint.rstrip("/")
    region = options.get("region")
    if region is not None and _REGION.fullmatch(region) is None:
        raise ConfigError(f"region={region} is not a region; write one like region=eu-central-1.")
    sse, kms_key_id = _parse_encryption(options)
    return S3Location(
        bucket=bucket,
        prefix=prefix,
        endpoint=endpoint,
        region=region,
        # Servers other than AWS rarely have a DNS name for every bucket.
        path_style=_parse_flag("path_style", options.get("path_style"), default=endpoint is not None),
        sse=sse,
        kms_key_id=kms_key_id,
    )


def _parse_encryption(options: dict[str, str]) -> tuple[ServerSideEncryption | None, str | None]:
    kms_key_id = options.get("kms_key_id")
    match options.get("sse"):
        case None if kms_key_id is None:
            return None, None
        case None | "aws:kms":
            return "aws:kms", kms_key_id
        case "AES256" if kms_key_id is None:
            return "AES256", None
        case "AES256":
            raise ConfigError("kms_key_id needs sse=aws:kms, not sse=AES256.")
        case other:
            raise ConfigError(f"sse={other} is not known; write sse=AES256 or sse=aws:kms.")


def _parse_flag(name: str, value: str | None, *, default: bool) -> bool:
    match value:
        case None:
            return default
        case "true" | "1":
            return True
        case "false" | "0":
            return False
        case _:
            raise ConfigError(f"{name}={value} must be true or false.")
