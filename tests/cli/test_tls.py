"""``firn tls show``: what is in a file of certificates."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from app.cli import main
from app.cli.tls import certificate_of, issue
from app.core.errors import ConfigError

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


@pytest.fixture
def made(tmp_path: Path) -> Path:
    issue(tmp_path / "tls", hosts=["kafka.example.com", "*.internal.example", "10.0.0.1"], clients=["app"], now=NOW)
    return tmp_path / "tls"


def test_principal_names_and_end_of_a_certificate_are_shown(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tls", "show", str(made / "broker.pem")]) == 0
    told = capsys.readouterr().out.splitlines()
    assert [line.split(maxsplit=1) for line in told[:2]] == [
        ["Principal", "User:CN=broker"],
        ["Names", "kafka.example.com, *.internal.example, 10.0.0.1"],
    ]
    assert told[3].endswith("2027-03-01T12:00:00Z")
    assert "PRIVATE" not in "".join(told)


def test_a_program_reads_the_same_as_json(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tls", "show", str(made / "ca.pem"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "subject": "CN=Firn trial CA",
        "names": [],
        "issuer": "CN=Firn trial CA",
        "not_after": "2027-03-01T12:00:00Z",
        "key": False,
    }


def key_of(path: Path) -> str:
    return path.read_text().partition("-----BEGIN CERTIFICATE")[0]


def test_a_key_of_another_certificate_is_seen_wherever_it_stands(made: Path) -> None:
    file = made / "mixed.pem"
    certificates = (made / "broker.pem").read_text().removeprefix(key_of(made / "broker.pem"))
    for text in (key_of(made / "app.pem") + certificates, certificates + key_of(made / "app.pem")):
        file.write_text(text)
        with pytest.raises(ConfigError, match="is not that of its first certificate"):
            certificate_of(file)
    file.write_text(certificates + key_of(made / "broker.pem"))
    assert certificate_of(file)["key"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (None, "cannot be read: No such file"),
        ("", "has no certificate in PEM"),
        ("-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n", "has no certificate in PEM"),
    ],
)
def test_a_file_without_a_certificate_is_refused(tmp_path: Path, text: str | None, why: str) -> None:
    file = tmp_path / "file.pem"
    if text is not None:
        file.write_text(text)
    with pytest.raises(ConfigError, match=why):
        certificate_of(file)


@pytest.mark.parametrize(
    ("label", "why"), [("PRIVATE KEY", "cannot be read"), ("ENCRYPTED PRIVATE KEY", "has a password|cannot be read")]
)
def test_a_key_that_cannot_be_used_is_refused(made: Path, label: str, why: str) -> None:
    file = made / "broken.pem"
    file.write_text(f"-----BEGIN {label}-----\nMIIB\n-----END {label}-----\n" + (made / "ca.pem").read_text())
    with pytest.raises(ConfigError, match=f"The private key of .* ({why})"):
        certificate_of(file)
