"""Stores of keys and certificates as Java and OpenSSL write them (PKCS#12), read as PEM.

Tests: ``tests/broker/test_secured_listeners.py``.
"""

from __future__ import annotations

from typing import Final

from app.core.errors import ConfigError
from app.core.extras import install_hint

JKS_MAGIC: Final = b"\xfe\xed\xfe\xed"


def pem_of(data: bytes, password: str, *, name: str, with_key: bool) -> bytes:
    """The private key with its chain, its own certificate first; or the certificates alone, which are trusted then.

    Args:
        name: how a message names the store: the setting, and its file.

    Raises: ConfigError.
    """
    if data.startswith(JKS_MAGIC):
        raise ConfigError(
            f"{name} is a JKS store: convert it with `{conversion(name.split()[-1])}`, and name the new file with the type PKCS12."
        )
    try:
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, pkcs12
    except ImportError:
        raise ConfigError(
            f"{name} needs the package cryptography to be read: run {install_hint('security')}."
        ) from None
    try:
        found = pkcs12.load_pkcs12(data, password.encode() if password else None)
    except ValueError:
        setting = f"{name.split('.location')[0]}.password"
        raise ConfigError(
            f"{name} cannot be read: it is no PKCS#12 store, or its password is another one ({setting})."
        ) from None
    others = [one.certificate for one in found.additional_certs]
    pem = Encoding.PEM
    if not with_key:
        own = [found.cert.certificate] if found.cert is not None else []
        if not own and not others:
            raise ConfigError(f"{name} has no certificate.")
        return b"".join(one.public_bytes(pem) for one in [*own, *others])
    if found.key is None or found.cert is None:
        raise ConfigError(f"{name} has no private key with its certificate.")
    chain = [found.cert.certificate]
    while issuer := next((one for one in others if one.subject == chain[-1].issuer and one not in chain), None):
        chain.append(issuer)
    key = found.key.private_bytes(pem, PrivateFormat.PKCS8, NoEncryption())
    return b"".join([key, *(one.public_bytes(pem) for one in chain)])


def conversion(path: str) -> str:
    """The command that makes a PKCS#12 store of a JKS store."""
    return f"keytool -importkeystore -srckeystore {path} -destkeystore {path}.p12 -deststoretype PKCS12"
