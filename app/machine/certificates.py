"""TLS contexts of PEM texts and files, and of PKCS#12 stores. A file that changes is read again, and new connections get what it
has now.

Nothing here is imported unless a listener or a client uses TLS.
"""

from __future__ import annotations

import os
import re
import ssl
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from app.core.errors import ConfigError

PEM_BYTES_MAX: Final = 4 << 20
VERSIONS: Final = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}


@dataclass(frozen=True, slots=True)
class Pem:
    """PEM text, by value or in a file."""

    name: str
    """How a message names it: the setting that has it."""
    path: str = ""
    text: str = ""
    pkcs12: bool = False
    """The file is a PKCS#12 store, and not PEM."""
    password: str = ""
    """Of such a store."""

    def __repr__(self) -> str:
        return f"Pem({self.name})"  # it may be a private key

    def read(self, *, with_key: bool = True) -> bytes:
        """``with_key``: of a store, the private key and its chain, and not all certificates. Raises: ConfigError."""
        if not self.path:
            # One line as properties files have it is as good as many.
            return self.text.replace("\\n", "\n").encode()
        try:
            with open(self.path, "rb") as file:
                data = file.read(PEM_BYTES_MAX + 1)
        except OSError as error:
            raise ConfigError(f"{self.name} {self.path} cannot be read: {error.strerror}.") from None
        if len(data) > PEM_BYTES_MAX:
            raise ConfigError(f"{self.name} {self.path} is larger than {PEM_BYTES_MAX >> 20} MiB; is it a PEM file?")
        if self.pkcs12:
            from app.machine.pkcs12 import pem_of

            return pem_of(data, self.password, name=f"{self.name} {self.path}", with_key=with_key)
        return data


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """The parts of a TLS context."""

    identity: Sequence[Pem] = ()
    """The private key and the chain of certificates, in one or several parts."""
    password: str = ""
    trust: Pem | None = None
    """Trusted authorities; None for none, and for a client the system's authorities."""
    revoked: Pem | None = None
    """Lists of revoked certificates."""
    client_auth: ssl.VerifyMode = ssl.CERT_NONE
    versions: Sequence[str] = ("TLSv1.2", "TLSv1.3")
    ciphers: Sequence[str] = ()
    checks_host: bool = True
    """As a client, whether the server's certificate must name its host."""

    def __repr__(self) -> str:
        return "TlsSettings(…)"  # it holds secrets


def tls_settings(
    texts: Mapping[str, str], *, prefix: str = "", client_auth: ssl.VerifyMode = ssl.CERT_NONE, checks_host: bool = True
) -> TlsSettings:
    """The TLS that settings ask for, by Kafka's names.

    A key and its chain by value count where no keystore is named, certificates by value where no truststore is. Types of stores
    are not checked.

    ``prefix``: stands before a name in messages. Raises: ConfigError.
    """

    def text(name: str) -> str:
        return texts.get(name, "").strip()

    def words(name: str) -> tuple[str, ...]:
        return tuple(word.strip() for word in text(name).split(",") if word.strip())

    def store(name: str) -> Pem | None:
        location = f"ssl.{name}.location"
        if not text(location):
            return None
        pkcs12 = text(f"ssl.{name}.type").upper() == "PKCS12"
        return Pem(f"{prefix}{location}", path=text(location), pkcs12=pkcs12, password=text(f"ssl.{name}.password"))

    def by_value(*names: str) -> list[Pem]:
        return [Pem(f"{prefix}{name}", text=text(name)) for name in names if text(name)]

    versions = words("ssl.enabled.protocols")
    if not VERSIONS.keys() >= {*versions}:
        raise ConfigError(f"{prefix}ssl.enabled.protocols may have TLSv1.2 and TLSv1.3.")
    keystore = store("keystore")
    revoked = text("firn.ssl.crl.location")
    return TlsSettings(
        identity=[keystore] if keystore else by_value("ssl.keystore.key", "ssl.keystore.certificate.chain"),
        password=text("ssl.key.password"),
        trust=store("truststore") or next(iter(by_value("ssl.truststore.certificates")), None),
        revoked=Pem(f"{prefix}firn.ssl.crl.location", path=revoked) if revoked else None,
        client_auth=client_auth,
        versions=versions or tuple(VERSIONS),
        ciphers=words("ssl.cipher.suites"),
        checks_host=checks_host,
    )


_UTC_TIME: Final = 0x17
_VERSION: Final = 0xA0
"""Tags of ASN.1: of a time with a short year, and of a certificate's version, which the first versions have not."""
_CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)

Read = tuple[bytes, bytes, bytes]
"""Identity, trust, revoked."""


def read(settings: TlsSettings) -> Read:
    """Raises: ConfigError."""
    return (
        b"\n".join([part.read() for part in settings.identity]),
        b"" if settings.trust is None else settings.trust.read(with_key=False),
        b"" if settings.revoked is None else settings.revoked.read(),
    )


def new_context(settings: TlsSettings, found: Read, *, server: bool) -> ssl.SSLContext:
    """Raises: ConfigError, which names the part and its fault."""
    identity, trust, revoked = found
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    versions = sorted(VERSIONS[name] for name in settings.versions)
    context.minimum_version, context.maximum_version = versions[0], versions[-1]
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    if server:
        # Without tickets every handshake looks at the client's certificate, and at the list of revoked ones.
        context.options |= ssl.OP_NO_TICKET
        context.num_tickets = 0
        context.verify_mode = settings.client_auth
    elif not settings.checks_host:
        context.check_hostname = False
    if settings.ciphers:
        _set_ciphers(context, settings.ciphers)
    # What was named and is empty is refused like anything else that is no PEM: somebody is just writing it. Without the list nobody
    # would be revoked, and a client without its truststore would trust all authorities of the system.
    if settings.identity:
        what = ", ".join(part.name for part in settings.identity)
        path, close = _as_file(identity)
        try:
            context.load_cert_chain(path, password=settings.password or (lambda: b""))
        except (ssl.SSLError, OSError) as error:
            why = "wrong ssl.key.password, or no PEM" if isinstance(error, ssl.SSLError) else str(error)
            if getattr(error, "reason", None) == "KEY_VALUES_MISMATCH":
                why = "the private key is not that of the first certificate"
            raise ConfigError(
                f"{what} cannot be used: {why}. It needs a private key and its certificate, as PEM, the certificate first of its"
                " chain."
            ) from None
        finally:
            close()
    if settings.trust is not None:
        try:
            context.load_verify_locations(cadata=trust.decode("ascii", "replace"))
        except (ssl.SSLError, ValueError):
            raise ConfigError(f"{settings.trust.name} has no certificate that can be read; it must be PEM.") from None
    elif not server:
        context.load_default_certs()
    if settings.revoked is not None:
        path, close = _as_file(revoked)
        try:
            context.load_verify_locations(cafile=path)
        except ssl.SSLError:
            raise ConfigError(f"{settings.revoked.name} has no list that can be read; it must be PEM.") from None
        finally:
            close()
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
    return context


def _set_ciphers(context: ssl.SSLContext, names: Sequence[str]) -> None:
    """By OpenSSL's names, and the names of TLS 1.3. Raises: ConfigError."""
    older = [name for name in names if not name.startswith("TLS_")]
    known = {cipher["name"] for cipher in context.get_ciphers()}
    strange = [name for name in names if name.startswith("TLS_") and name not in known]
    if strange:
        raise ConfigError(
            f"ssl.cipher.suites: {strange[0]} is not known; for TLS 1.2 write OpenSSL's names, such as ECDHE-RSA-AES256-GCM-SHA384."
        )
    if not older:
        context.minimum_version = ssl.TLSVersion.TLSv1_3  # none of an older version was named
    else:
        try:
            context.set_ciphers(":".join(older))
        except ssl.SSLError:
            raise ConfigError(f"ssl.cipher.suites: OpenSSL knows none of {', '.join(older)}.") from None


def _as_file(data: bytes) -> tuple[str, Callable[[], None]]:
    """OpenSSL reads keys from files only. In memory, where the system can."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("firn", os.MFD_CLOEXEC)
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
        return f"/proc/self/fd/{descriptor}", lambda: os.close(descriptor)
    with tempfile.NamedTemporaryFile(delete=False) as other:  # only its owner can read it
        other.write(data)

    def remove() -> None:
        with suppress(OSError):
            os.unlink(other.name)

    return other.name, remove


def not_after_s(certificate: bytes) -> int:
    """When a certificate in DER ends, in Unix time (RFC 5280, 4.1: the end of the ``validity`` of its ``tbsCertificate``).

    OpenSSL has accepted the certificate before: it is well formed.
    """

    def value_at(place: int) -> tuple[int, int]:
        """Where the content of the element at this place begins and ends."""
        size, place = certificate[place + 1], place + 2
        if size >= 0x80:
            size, place = int.from_bytes(certificate[place : place + size - 0x80], "big"), place + size - 0x80
        return place, place + size

    place, _ = value_at(value_at(0)[0])
    if certificate[place] == _VERSION:
        _, place = value_at(place)
    for _ in ("serialNumber", "signature", "issuer"):
        _, place = value_at(place)
    _, end_of_not_before = value_at(value_at(place)[0])
    begin, end = value_at(end_of_not_before)
    text = certificate[begin:end].decode("ascii")
    if certificate[end_of_not_before] == _UTC_TIME:  # two digits of the year: 1950 to 2049
        text = ("19" if text >= "50" else "20") + text
    return int(datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC).timestamp())


class Certificates:
    """The context of one listener, or of a client, as its files are now. ``look`` reads them again."""

    def __init__(self, settings: TlsSettings, *, server: bool) -> None:
        """Raises: ConfigError."""
        self._settings = settings
        self._server = server
        self._found = read(settings)
        self.context = new_context(settings, self._found, server=server)
        """For the next connection."""

    @property
    def own(self) -> bytes | None:
        """The certificate that others are shown, as DER; None if there is none."""
        found = _CERTIFICATE.search(self._found[0])
        return None if found is None else ssl.PEM_cert_to_DER_cert(found[0].decode("ascii"))

    @property
    def expires_s(self) -> int | None:
        """When the certificate that others are shown ends, in Unix time; None if there is none."""
        own = self.own
        return None if own is None else not_after_s(own)

    def look(self) -> bool:
        """Read the files, and use new ones. Returns whether one was new. May block.

        Raises: ConfigError if it cannot be used; the old context stays.
        """
        found = read(self._settings)
        if found == self._found:
            return False
        self.context = new_context(self._settings, found, server=self._server)
        self._found = found
        return True
