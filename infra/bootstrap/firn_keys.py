"""What is secret on a machine with TLS, logins and rules: read from Secrets Manager, written to files, told to the broker.

``firn_security`` says what is in the secret and what follows from it. Here it gets to the machine: at a boot (``read``, ``write``,
``leave_users``, ``let_metrics_be_read``, in this order), and while the broker serves (``refresh``).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Final

from firn_aws import Aws, AwsError, Unreachable
from firn_machine import USER, Done, Machine, properties_text, write_whole
from firn_security import (
    APPLIED,
    AUTHORITY,
    BROKERS_PORT,
    FOLDER,
    HTTP_CLIENT,
    KEYSTORE,
    METRICS,
    METRICS_PASSWORD,
    NEXT_KEYSTORE,
    OWN_CLIENT,
    OWN_ENVIRONMENT,
    Secret,
    check_trust,
    http_client,
    own_client,
    own_environment,
    parse_secret,
    principal_of,
)
from firn_settings import Refused, Settings

DATA: Final = ("--data-dir", "/var/lib/firn/data")
"""How a command finds the broker of this machine where there are no logins."""


class MachineKeys:
    """Of one machine, with or without ``security`` in its settings."""

    def __init__(self, settings: Settings, machine: Machine, aws: Aws, firn: Callable[..., Done]) -> None:
        """``firn`` runs a command of the release, with its keywords in the environment."""
        self._settings = settings
        self._machine = machine
        self._aws = aws
        self._firn = firn
        self.host = ""
        """This machine's name for other brokers, if it is a broker's."""
        self.secret: Secret | None = None
        self.principal = ""
        """Of the brokers, by their certificate."""

    @property
    def of_broker(self) -> tuple[str, ...]:
        """How a command on this machine finds its broker."""
        return DATA if self.secret is None else ("--bootstrap", f"{self.host}:{BROKERS_PORT}")

    def read(self) -> None:
        """What only brokers may know. Raises: Refused."""
        security = self._settings.security
        if security is None:
            return
        try:
            text = self._aws.secret(security.secret)
        except Unreachable as error:
            raise Refused(
                f"Secrets Manager cannot be reached: {error}. Check its interface endpoint, or the route. Nothing was changed."
            ) from error
        except AwsError as error:
            raise Refused(
                f"Secrets Manager does not give the secret {security.secret} ({error}). Check the role's policy, the policy of the "
                "secret's key, and that the secret has a value. Nothing was changed."
            ) from error
        self.secret = parse_secret(text)

    def write(self, show: Callable[..., Done], *, principal: str = "") -> None:
        """Key, certificates and passwords of this machine, if it has any. ``show`` runs `firn tls show`. ``principal``: who the
        brokers are already. Raises: Refused."""
        security = self._settings.security
        if security is None:
            return
        self._machine.path(FOLDER).mkdir(parents=True, exist_ok=True)
        self._keep(AUTHORITY, security.authority, 0o644)
        if self.secret is None:
            self._keep(HTTP_CLIENT, properties_text(http_client()), 0o644)
            return
        self._keep(NEXT_KEYSTORE, self.secret.keystore, 0o640)
        following = self._machine.path(NEXT_KEYSTORE)
        try:
            self.principal = self._principal_of(NEXT_KEYSTORE, show)
            if principal not in ("", self.principal):
                raise Refused(
                    f"By the certificate in the secret this broker is {self.principal}, and the brokers are {principal}, who would "
                    "refuse it. Keep the subject, or replace all machines at once. Nothing was changed."
                )
            check_trust(following, self._machine.path(AUTHORITY), self._names)
            following.replace(self._machine.path(KEYSTORE))  # the broker may read it at any time
        finally:
            following.unlink(missing_ok=True)
        self._keep(OWN_CLIENT, properties_text(own_client()), 0o644)
        self._keep(OWN_ENVIRONMENT, own_environment(self.host), 0o644)
        self._keep(METRICS_PASSWORD, self.secret.users[METRICS], 0o600)

    @property
    def _names(self) -> tuple[str, ...]:
        """That clients and brokers connect to."""
        return (self.host,) if self._settings.own_address else (self._settings.advertised_host, self.host)

    def _principal_of(self, keystore: str, show: Callable[..., Done]) -> str:
        """Raises: Refused if it is none that a broker could have."""
        done = show("tls", "show", str(self._machine.path(keystore)), "--json")
        if done.code != 0:
            raise Refused(f"The keystore in the secret cannot be used: {done.last_words}.")
        return principal_of(json.loads(done.out))

    def _keep(self, place: str, text: str, mode: int) -> None:
        """Write a file unless it has the text already; the broker may read it if its group may."""
        path = self._machine.path(place)
        write_whole(path, text, mode)
        if mode & 0o070:  # also if an earlier boot ended before it came to that
            self._machine.own(path, "root", USER)

    def leave_users(self) -> None:
        """Users for the broker to make at its start, unless they have been made with these passwords. Raises: Refused."""
        if self.secret is None or self._machine.run("systemctl", "is-active", "--quiet", "firn.service").code == 0:
            return  # `refresh` tells a broker that serves
        self._give_passwords(self.secret, self._applied(), "--offline", *DATA)
        self._keep(APPLIED, self.secret.text, 0o600)

    def _give_passwords(self, secret: Secret, applied: Secret | None, *how: str) -> list[str]:
        """Make users, and change passwords, that are new in the secret. Returns: their names. Raises: Refused."""
        given = []
        for name, password in secret.users.items():
            if applied is None or applied.users.get(name) != password:
                # Not on a command line, which everybody on the machine can read.
                done = self._firn("user", "add", name, *how, FIRN_CLIENT_NEW_PASSWORD=password)
                if done.code != 0:
                    raise Refused(f"User {name} cannot be given the password in the secret: {done.last_words}.")
                given.append(name)
        return given

    def _applied(self) -> Secret | None:
        """The secret that this machine has put in force."""
        try:
            return parse_secret(self._machine.path(APPLIED).read_text())
        except (FileNotFoundError, Refused):
            return None

    def let_metrics_be_read(self) -> None:
        """Give the user that reads metrics the right to. The machine serves without it, so a failure is told only."""
        if self.secret is None:
            return
        rule = ("--allow", f"User:{METRICS}", "--operation", "describe", "--cluster")
        done = self._firn("acl", "add", *rule, *self.of_broker)
        if done.code != 0:
            self._machine.say(f"Nobody can read metrics here: {done.last_words}.")

    def refresh(self) -> None:
        """Put a changed secret in force while the broker serves. Raises: Refused, OSError."""
        self.read()
        secret, applied = self.secret, self._applied()
        if secret is None or applied == secret:
            return
        self.write(self._firn, principal=self._principal_of(KEYSTORE, self._firn))
        if given := self._give_passwords(secret, applied, *self.of_broker):
            self._machine.say(f"The password is new of: {', '.join(given)}.")
        if applied is None or applied.settings != secret.settings:
            self._machine.say("Settings of the secret have changed: they count from the next boot of this machine.")
        self._keep(APPLIED, secret.text, 0o600)
        self._machine.say("The secret has changed, and is in force.")
