"""Files of certificates that are read again."""

from __future__ import annotations

import ssl
from pathlib import Path

import pytest

from app.core.errors import ConfigError
from app.machine.certificates import Certificates, tls_settings
from tests.support.secured import certificates, revocations

LIST, TRUST, KEYS = "firn.ssl.crl.location", "ssl.truststore.location", "ssl.keystore.location"


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
