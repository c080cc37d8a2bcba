"""``firn tls``: an authority and certificates for a trial."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from app.errors import ConfigError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate

app = typer.Typer(help="Make certificates for a trial.", no_args_is_help=True, rich_markup_mode=None)

DAYS: Final = 365
NAME_BYTES_MAX: Final = 64


@app.callback()
def _family() -> None:
    """Make certificates for a trial."""


@app.command()
def init(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder for the files; it must not exist, or be empty.")
    ],
    host: Annotated[
        list[str] | None,
        typer.Option(
            "--host", metavar="NAME", help="Name or address of the broker; may be repeated. [localhost, 127.0.0.1]"
        ),
    ] = None,
    client: Annotated[
        list[str] | None,
        typer.Option("--client", metavar="NAME", help="Name of a client; may be repeated. [client]"),
    ] = None,
) -> int:
    """Make an authority, a certificate of a broker, and one of each client, as PEM.

    They are for a trial: the authority's private key lies beside them, without a password. Anybody who can read it can be anybody.
    """
    clients = client or ["client"]
    names = [*clients, "broker", "ca"]
    if len(set(names)) != len(names):
        raise ConfigError("--client: each client needs a name of its own, other than broker and ca.")
    for name in clients:
        if not name or "/" in name or name.startswith(".") or len(name.encode()) > NAME_BYTES_MAX:
            raise ConfigError(f"--client {name!r} is not a name; use letters, digits, '-' and '.'.")
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(f"{directory} is not an empty folder: name a new one.")
    made = issue(directory, hosts=host or ["localhost", "127.0.0.1"], clients=clients, now=_now())
    for path in made:
        print(path)  # noqa: T201
    return 0


def _now() -> datetime:
    from app.machine.runtime import SystemClock

    return datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC)


def issue(directory: Path, *, hosts: list[str], clients: list[str], now: datetime) -> list[Path]:
    """Write ``ca.pem``, ``ca.key.pem``, ``broker.pem`` and a file of each client, each with key and certificates.

    Raises: ConfigError.
    """
    try:
        from cryptography import x509
    except ImportError:
        raise ConfigError("firn tls needs the package cryptography: run pip install 'firn-broker[security]'.") from None
    from cryptography.hazmat.primitives.asymmetric import ec

    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    authority_key = ec.generate_private_key(ec.SECP256R1())
    authority = _certificate("Firn trial CA", authority_key, None, authority_key, now, names=[], ca=True)
    made = [
        _write(directory / "ca.pem", _pem(authority), 0o644),
        _write(directory / "ca.key.pem", _pem_key(authority_key), 0o600),
    ]
    for name in ("broker", *clients):
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives: list[x509.GeneralName] = []
        for host in hosts if name == "broker" else []:
            try:
                alternatives.append(x509.IPAddress(ipaddress.ip_address(host)))
            except ValueError:
                alternatives.append(x509.DNSName(host))
        certificate = _certificate(name, key, authority, authority_key, now, names=alternatives, ca=False)
        made.append(_write(directory / f"{name}.pem", _pem_key(key) + _pem(certificate) + _pem(authority), 0o600))
    return made


def _certificate(
    name: str,
    key: EllipticCurvePrivateKey,
    issuer: Certificate | None,
    issuer_key: EllipticCurvePrivateKey,
    now: datetime,
    *,
    names: Sequence[object],
    ca: bool,
) -> Certificate:
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(minutes=5))
        .not_valid_after(now + timedelta(days=DAYS))
        .add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        .add_extension(
            x509.KeyUsage(
                digital_signature=True,
                content_commitment=False,
                key_encipherment=False,
                data_encipherment=False,
                key_agreement=False,
                key_cert_sign=ca,
                crl_sign=ca,
                encipher_only=False,
                decipher_only=False,
            ),
            critical=True,
        )
    )
    if not ca:
        usages = [ExtendedKeyUsageOID.CLIENT_AUTH, ExtendedKeyUsageOID.SERVER_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(usages), critical=False)
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)  # type: ignore[arg-type]
    return builder.sign(issuer_key, hashes.SHA256())


def _pem(certificate: Certificate) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return certificate.public_bytes(Encoding.PEM)


def _pem_key(key: EllipticCurvePrivateKey) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _write(path: Path, data: bytes, mode: int) -> Path:
    """A file that nobody but its owner could read at any time, if ``mode`` says so."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
    return path
