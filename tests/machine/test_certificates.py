"""Files of certificates that are read again."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from app.core.errors import ConfigError
from app.machine.certificates import Certificates, not_after_s, tls_settings
from tests.support.secured import add_certificate, certificates, revocations

LIST, TRUST, KEYS = "firn.ssl.crl.location", "ssl.truststore.location", "ssl.keystore.location"


def test_the_end_of_a_certificate_is_read_as_cryptography_reads_it(tmp_path: Path) -> None:
    folder = certificates(tmp_path / "tls")
    for name in ("broker", "client", "ca"):
        (found, *_) = x509.load_pem_x509_certificates((folder / f"{name}.pem").read_bytes())
        der = found.public_bytes(Encoding.DER)
        assert not_after_s(der) == int(found.not_valid_after_utc.timestamp())


@pytest.mark.parametrize(
    "ends", [datetime(1999, 12, 31, 23, 59, 59), datetime(2049, 12, 31), datetime(2050, 1, 1), datetime(9999, 12, 31)]
)
def test_a_certificate_may_end_in_any_century(ends: datetime) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "n" * 60)] * 5)
    made = x509.CertificateBuilder(name, name, key.public_key(), 1 << 150, datetime(1990, 1, 1), ends)
    assert not_after_s(made.sign(key, SHA256()).public_bytes(Encoding.DER)) == ends.replace(tzinfo=UTC).timestamp()


def test_a_listener_shows_when_its_certificate_ends_and_a_new_one(tmp_path: Path) -> None:
    folder = certificates(tmp_path / "tls")
    keys = folder / "broker.pem"
    found = Certificates(tls_settings({KEYS: str(keys)}), server=True)
    before = found.expires_s
    assert before is not None
    keys.write_bytes(add_certificate(folder, "shorter", "localhost", days=1).read_bytes())
    assert found.look()
    assert found.expires_s is not None
    assert found.expires_s < before
    assert Certificates(tls_settings({}), server=False).expires_s is None


@pytest.mark.parametrize("server", [True, False])
@pytest.mark.parametrize("setting", [LIST, TRUST, KEYS])
@pytest.mark.parametrize("data", [b"", b"\n", b"-----BEGIN"])
def test_a_file_that_somebody_is_writing_leaves_what_was_read_before(
    tmp_path: Path, setting: str, data: bytes, server: bool
) -> None:
    """Not: nobody is revoked, the authorities of the system are trusted, there is no certificate."""
    folder = certificates(tmp_path / "tls")
    (folder / "list.pem").write_bytes(revocations(folder, "client"))
    files = {LIST: folder / "list.pem", TRUST: folder / "ca.pem", KEYS: folder / "broker.pem"}
    settings = tls_settings({name: str(path) for name, path in files.items()}, client_auth=ssl.CERT_REQUIRED)
    found = Certificates(settings, server=server)
    before = found.context
    files[setting].write_bytes(data)
    with pytest.raises(ConfigError, match=setting):
        found.look()
    assert found.context is before
    with pytest.raises(ConfigError, match=setting):
        Certificates(settings, server=server)
