"""Names of certificates as Java prints them, the rules for them, and Java's syntax of login modules."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from app.security.jaas import parse_jaas
from app.security.names import Attribute, PrincipalRules, rfc2253, subject_of


def der(*parts: list[x509.NameAttribute]) -> bytes:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.RelativeDistinguishedName(part) for part in parts])
    now = datetime(2026, 1, 1, tzinfo=UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ca")]))
        .public_key(key.public_key())
        .serial_number(7)
        .not_valid_before(now)
        .not_valid_after(now + timedelta(days=1))
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(Encoding.DER)


def test_a_certificates_name_is_printed_as_java_prints_it() -> None:
    certificate = der(
        [x509.NameAttribute(NameOID.COUNTRY_NAME, "DE")],
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, 'A, "B" + C')],
        [x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, " kühl #1=x ")],
        [x509.NameAttribute(NameOID.DOMAIN_COMPONENT, "example")],
        [x509.NameAttribute(NameOID.EMAIL_ADDRESS, "a@b.c")],
        [x509.NameAttribute(NameOID.COMMON_NAME, "kafka"), x509.NameAttribute(NameOID.USER_ID, "u")],
    )
    printed = rfc2253(subject_of(certificate))
    several, rest = printed.split(",", 1)
    assert sorted(several.split("+")) == ["CN=kafka", "UID=u"]
    assert rest == ('1.2.840.113549.1.9.1=#16056140622e63,DC=example,OU=\\ kühl \\#1=x\\ ,O=A\\, \\"B\\" \\+ C,C=DE')


@given(st.binary(max_size=200))
def test_bytes_that_are_no_certificate_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        subject_of(data)


def test_a_certificate_that_is_cut_or_changed_is_read_or_refused() -> None:
    certificate = der([x509.NameAttribute(NameOID.COMMON_NAME, "x")])
    for end in range(len(certificate)):
        with pytest.raises(ValueError, match=r"."):
            subject_of(certificate[:end])
    for position in range(120):
        changed = bytearray(certificate)
        changed[position] ^= 0xFF
        try:
            rfc2253(subject_of(bytes(changed)))
        except ValueError:
            continue


def test_an_empty_value_has_no_spaces_to_escape() -> None:
    assert rfc2253([[Attribute("2.5.4.3", "", b"\x0c\x00")]]) == "CN="
    assert rfc2253([[Attribute("2.5.4.3", "  ", b"")]]) == "CN=\\ \\ "


@pytest.mark.parametrize(
    ("rules", "name", "user"),
    [
        ("DEFAULT", "CN=a,O=b", "CN=a,O=b"),
        ("", "CN=a", "CN=a"),
        (r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,DEFAULT", "CN=kafka,OU=ServiceUsers,O=x", "kafka"),
        (r"RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,DEFAULT", "CN=other,O=x", "CN=other,O=x"),
        (r"RULE:^CN=(.*?),OU=(.*?),.*$/$1@$2/L", "CN=Adm,OU=Ops,O=x", "adm@ops"),
        (r"RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U", "CN=duke,O=x", "DUKE"),
        (r"RULE:^CN=(.*)$/a\/b$1/", "CN=x", "a/bx"),
        (r"RULE:^CN=x$/y/", "CN=z", None),
    ],
)
def test_rules_make_users_of_names(rules: str, name: str, user: str | None) -> None:
    assert PrincipalRules(rules).apply(name) == user


@pytest.mark.parametrize("rules", ["RULE:a", "NONE", "RULE:(/x/", "DEFAULT DEFAULT", "RULE:a/b/X"])
def test_rules_that_cannot_be_read_are_refused(rules: str) -> None:
    with pytest.raises(ValueError, match=r"is not a rule|cannot be read"):
        PrincipalRules(rules)


def test_login_modules_are_read_as_java_reads_them() -> None:
    entry = parse_jaas(
        'org.apache.kafka.common.security.plain.PlainLoginModule required\n  username="a" password=\'p"=;\' user_x="\\"q" ;'
    )
    assert entry.options == {"username": "a", "password": 'p"=;', "user_x": '"q'}
    assert entry.users == {"x": '"q'}
    assert "q" not in repr(entry)


@pytest.mark.parametrize("text", ["", "x required", "x;", 'x required a="b', "x required a;", "x maybe a=b;", "; ; ;"])
def test_login_modules_that_cannot_be_read_are_refused_without_their_text(text: str) -> None:
    with pytest.raises(ValueError, match=r"^it|^the word|^its"):
        parse_jaas(text)
