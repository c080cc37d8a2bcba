"""A user who does not exist costs the same work as a wrong password, and is told in the same words.

Work is counted, not timed: which digests are made, over how many bytes, and what is compared.
"""

from __future__ import annotations

import hashlib
import hmac
from typing import Any

import pytest

from app.security import sasl, scram
from app.security.login import Login, Reply
from app.security.sasl import Mechanism, PlainServer, plain_message
from app.security.scram import ScramClient, ScramCredential, ScramMechanism, ScramServer, credential_of, salted_password

SALT = b"s" * 24


class Counted:
    """Notes what a module asks of ``hmac`` and ``hashlib``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
        self.work: list[tuple[object, ...]] = []
        self._patch(monkeypatch, module, "hmac", hmac, ("digest", "compare_digest", "new"))
        if hasattr(module, "hashlib"):
            self._patch(monkeypatch, module, "hashlib", hashlib, ("new", "pbkdf2_hmac"))

    def _patch(
        self, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, real: Any, calls: tuple[str, ...]
    ) -> None:
        work = self.work

        class Watched:
            def __getattr__(self, call: str) -> Any:
                found = getattr(real, call)
                if call not in calls:
                    return found

                def noted(*args: Any) -> Any:
                    sizes = [len(arg) if isinstance(arg, bytes) else arg for arg in args]
                    work.append((name, call, *sizes))
                    return found(*args)

                return noted

        monkeypatch.setattr(module, name, Watched())

    def take(self) -> list[tuple[object, ...]]:
        taken = list(self.work)
        self.work.clear()
        return taken


def credential(mechanism: ScramMechanism) -> ScramCredential:
    return credential_of(mechanism, salted_password(mechanism, "right", SALT, 4096), SALT, 4096)


@pytest.mark.parametrize("mechanism", list(ScramMechanism))
def test_scram_works_as_much_for_nobody_as_for_a_wrong_password(
    monkeypatch: pytest.MonkeyPatch, mechanism: ScramMechanism
) -> None:
    users = {"alice": credential(mechanism)}

    def conversation(user: str) -> tuple[Reply, list[tuple[object, ...]]]:
        login = Login(
            [mechanism.sasl_name],
            lambda _: ScramServer(mechanism, users.get, nonce="n" * 24, secret=b"x" * 32),
        )
        login.handshake(1, mechanism.sasl_name, 0.0)
        client = ScramClient(mechanism, user, "wrong", nonce="c" * 24)
        counted = Counted(monkeypatch, scram)
        first = login.authenticate(client.first)
        of_server = counted.take()
        proof = client.answer(first.token)
        counted.take()
        last = login.authenticate(proof)
        of_server += counted.take()
        monkeypatch.undo()
        return last, of_server

    known, known_work = conversation("alice")
    nobody, nobody_work = conversation("nobod")  # of the same length
    assert known.code != 0
    assert (known.code, known.sentence, known.token) == (nobody.code, nobody.sentence, nobody.token)
    assert known_work
    assert known_work == nobody_work


def test_plain_works_as_much_for_nobody_as_for_a_wrong_password(monkeypatch: pytest.MonkeyPatch) -> None:
    server: Mechanism = PlainServer({"alice": b"right"})
    found = []
    for user, password in (("alice", "wrong"), ("nobody", "wrong"), ("nobody", "right")):
        login = Login(["PLAIN"], lambda _: server)
        login.handshake(1, "PLAIN", 0.0)
        counted = Counted(monkeypatch, sasl)
        reply = login.authenticate(plain_message(user, password))
        calls = [*counted.take()]
        monkeypatch.undo()
        found.append((reply.code, reply.sentence, calls))
    assert found[0][0] != 0
    assert len(found[0][2]) == 2
    assert found[0] == found[1] == found[2]


def test_what_the_operator_is_told_of_a_failure_is_the_same_but_for_the_name() -> None:
    server: Mechanism = PlainServer({"alice": b"right"})
    told = []
    for user in ("alice", "nobody"):
        login = Login(["PLAIN"], lambda _: server)
        login.handshake(1, "PLAIN", 0.0)
        failure = login.authenticate(plain_message(user, "wrong")).failure
        assert failure is not None
        assert failure.user == user
        told.append(failure.why)
    assert told[0] == told[1]
