"""``firn tls``: an authority and certificates for a trial, and the contents of a certificate."""

from __future__ import annotations

import ipaddress
import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from app.cli.session import Json
from app.core.errors import ConfigError, clause
from app.core.extras import install_hint

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, GeneralName

app = typer.Typer(
    help="Make certificates for a trial, and show what is in one.", no_args_is_help=True, rich_markup_mode=None
)

DAYS: Final = 365
NAME_BYTES_MAX: Final = 64


@app.callback()
def _family() -> None:
    """Make certificates for a trial, and show the contents of one."""


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

    They are for a trial: the authority's private key lies beside them, without a password. With this key one can act as any user.
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


@app.command()
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="PEM file with a certificate, with or without its key.")],
    as_json: Json = False,
) -> int:
    """Show the first certificate of a file: the principal that brokers make of it, its names, and its end.

    Of a file with a private key it is checked that the key is that of the certificate.
    """
    from app.cli.output import print_json

    found = certificate_of(file)
    if as_json:
        print_json(found)
        return 0
    rows = [
        ("Principal", f"User:{found['subject']}"),
        ("Names", ", ".join(found["names"]) or "none"),
        ("Issuer", found["issuer"]),
        ("Valid until", found["not_after"]),
        ("Private key", "in the file" if found["key"] else "not in the file"),
    ]
    for name, text in rows:
        print(f"{name:<13} {text}")  # noqa: T201
    return 0


def certificate_of(file: Path) -> dict[str, Any]:
    """The contents of a PEM file. Raises: ConfigError."""
    x509 = _x509()
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key

    from app.security.names import rfc2253, subject_of

    try:
        data = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}.") from None
    try:
        certificate = x509.load_pem_x509_certificates(data)[0]
    except ValueError:
        raise ConfigError(f"{file} has no certificate in PEM that can be read.") from None
    begin = data.find(b"-----BEGIN ")
    while begin >= 0 and b"PRIVATE KEY-----" not in data[begin : data.find(b"\n", begin)]:
        begin = data.find(b"-----BEGIN ", begin + 1)
    if begin >= 0:
        try:
            key = load_pem_private_key(data[begin:], password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm) as error:
            why = "has a password" if isinstance(error, TypeError) else "cannot be read"
            raise ConfigError(f"The private key of {file} {why}.") from None
        if key.public_key() != certificate.public_key():
            raise ConfigError(f"The private key of {file} is not that of its first certificate.")
    names: list[str] = []
    try:
        with suppress(x509.ExtensionNotFound):
            alternatives = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            names += alternatives.get_values_for_type(x509.DNSName)
            names += [str(one) for one in alternatives.get_values_for_type(x509.IPAddress)]
        subject = rfc2253(subject_of(certificate.public_bytes(Encoding.DER)))
    except ValueError as error:
        raise ConfigError(f"The certificate of {file} cannot be read: {clause(error)}.") from None
    return {
        "subject": subject,
        "names": names,
        "issuer": certificate.issuer.rfc4514_string(),
        "not_after": certificate.not_valid_after_utc.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "key": begin >= 0,
    }


def _x509() -> ModuleType:
    """Raises: ConfigError if the package that makes and reads certificates is not there."""
    try:
        from cryptography import x509
    except ImportError:
        raise ConfigError(f"firn tls needs the package cryptography: run {install_hint('security')}.") from None
    return x509


def _now() -> datetime:
    from app.machine.runtime import SystemClock

    return datetime.fromtimestamp(SystemClock().now_ms() / 1000, UTC)


def issue(directory: Path, *, hosts: list[str], clients: list[str], now: datetime) -> list[Path]:
    """Write ``ca.pem``, ``ca.key.pem``, ``broker.pem`` and a file of each client, each with key and certificates.

    Raises: ConfigError.
    """
    x509 = _x509()
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
        alternatives: list[GeneralName] = []
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
    """Write a new file. It has ``mode`` from its creation on, so a secret is at no time readable for others."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        file.write(data)
    return path
