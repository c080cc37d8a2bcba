"""Every command of ``firn`` that asks a broker, run as a user who may do nothing there."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from app.cli import main
from app.cli.commands import application
from app.configs.broker import STANDARD_AUTHORIZER
from app.handlers.base.authorising import TABLE
from app.metadata.image.records import LEVEL_MAX
from app.wire.apikeys import ApiKey
from tests.handlers.conversation import batch, talk
from tests.support.audited import Heard
from tests.support.broker import RunningBroker, running_broker
from tests.support.callers import Everybody
from tests.support.several import unfenced
from tests.support.waiting import until

NOBODY = "User:nobody"
TOPIC, VALUE = "secret-topic", b"secret-record"

ASKS_NO_BROKER: Final = frozenset(
    {
        "serve", "wait", "stop", "http", "demo", "verify", "doctor", "store init", "cost",
        "tls init", "tls show", "iam policy", "cluster place",
        "tier adopt", "tier accept-loss", "job archive", "job verify", "job audit", "job compact", "job replay",
    }
)  # fmt: skip
"""They start something, or read the object store, which its own policies guard."""

REFUSED: Final = {
    "drain": (),
    "produce": (TOPIC, "{lines}"),
    "consume": (TOPIC,),
    "topic create": ("new-topic",),
    "topic describe": (TOPIC,),
    "topic alter": (TOPIC, "--set", "retention.ms=1"),
    "topic delete": (TOPIC, "--yes"),
    "topic delete-records": (TOPIC, "-p", "0", "--before", "1", "--yes"),
    "topic add-partitions": (TOPIC, "-t", "3"),
    "topic move": (TOPIC, "--to", "1", "--yes"),
    "group describe": ("group",),
    "group reset": ("group", "-t", TOPIC, "--to", "1", "--execute"),
    "group delete": ("group", "--yes"),
    "acl list": (),
    "acl add": ("--allow", NOBODY, "--operation", "all", "--topic", TOPIC),
    "acl remove": ("--topic", TOPIC, "--yes"),
    "tier segments": (TOPIC, "-p", "0"),
    "cluster status": (),
    "cluster brokers": (),
    "cluster wait": (),
    "cluster features": ("--upgrade", "firn.version=1"),
    "cluster unregister": ("7", "--yes"),
    "cluster drain": ("1", "--yes"),
    "cluster rebalance": ("--yes",),
    "quota list": (),
    "quota set": ("--user", "nobody", "producer_byte_rate=1e9"),
    "quota remove": ("--user", "nobody", "producer_byte_rate"),
    "token create": (),
    "token renew": ("id",),
    "token expire": ("id",),
    "token list": (),
    "user add": ("nobody", "--password-file", "{lines}"),
    "user remove": ("nobody",),
    "user list": (),
    "schema register": (f"{TOPIC}-value", "{schema}"),
}  # fmt: skip
"""Command and its arguments."""

TELL_LESS: Final = {
    "topic list": (), "group list": (), "tier status": (), "schema list": (), "schema check": (f"{TOPIC}-value", "{schema}"),
    "debug bundle": ("{bundle}",),
}  # fmt: skip
"""Lists and a bundle without what one may not see, and a comparison with versions that one may see."""

_SPELT: Final = {"schema list": "schema ls"}

HIDE: Final = {"schema get": (f"{TOPIC}-value",)}
"""What one may not see is not there."""


def commands() -> Iterator[tuple[str, str]]:
    """Name of each command, and of the one that it is another spelling of."""

    def walk(command: Any, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        for name, one in command.commands.items():
            if hasattr(one, "commands"):
                yield from walk(one, (*path, name))
            else:
                yield (*path, name)

    spelt = {"ls": "list", "rm": "delete"}
    for path in walk(application(), ()):
        same = "remove" if path == ("acl", "rm") else spelt.get(path[-1], path[-1])
        yield " ".join(path), " ".join((*path[:-1], same))


def test_every_command_is_in_one_of_the_tables() -> None:
    tables = [ASKS_NO_BROKER, {*REFUSED}, {*TELL_LESS}, {*HIDE}]
    assert {same for _, same in commands()} == set().union(*tables)
    assert sum(map(len, tables)) == len(set().union(*tables))


def state_of(broker: RunningBroker) -> Any:
    image = broker.node.context.image
    log = broker.log(TOPIC)
    return (
        image.topics_by_id, image.acls, image.quotas, image.scram_users, image.features, image.brokers.keys(),
        log.log_start_offset, log.log_end_offset, broker.node.context.drain.state,
    )  # fmt: skip


async def test_no_command_does_anything_for_a_user_without_rights(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = tmp_path / "lines"
    lines.write_bytes(b"one\n")
    schema = tmp_path / "schema"
    schema.write_text('"string"')
    async with running_broker(
        tmp_path, new_level=LEVEL_MAX, authorizer_class_name=STANDARD_AUTHORIZER, super_users="User:admin"
    ) as broker:
        await until(lambda: unfenced(broker))
        for name in (TOPIC, "__consumer_offsets"):
            await broker.create_topic(name)
        everybody = Everybody(broker.node.context.rights, "User:admin")
        broker.node.context.doorkeeper = everybody
        async with talk(broker.port) as admin:
            await admin.produce(9, [(TOPIC, [(0, batch(value=VALUE))])])
        everybody.principal = NOBODY
        monkeypatch.setattr(sys, "excepthook", sys.excepthook)  # main sets its own
        monkeypatch.setenv("FIRN_BOOTSTRAP", broker.bootstrap)
        heard, before = Heard(broker.node.context.audit), state_of(broker)
        for command, arguments in {**REFUSED, **TELL_LESS, **HIDE}.items():
            capfd.readouterr()
            files = {"{lines}": str(lines), "{schema}": str(schema), "{bundle}": str(tmp_path / "bundle.tar.gz")}
            filled = [files.get(one, one) for one in arguments]
            more = ["-b", broker.bootstrap] if command == "drain" else []
            code = await asyncio.to_thread(main, [*_SPELT.get(command, command).split(), *filled, *more])
            out, err = capfd.readouterr()
            denied = [line for line in heard.take() if line["outcome"] == "denied"]
            assert "Traceback" not in err, (command, err)
            assert state_of(broker) == before, command
            assert VALUE.decode() not in out, command
            if command in TELL_LESS:
                assert (code, TOPIC in out) == (0, False), (command, code, out, err)
                continue
            assert code == 1, (command, code, out, err)
            if command in HIDE:
                assert (denied, "not found" in err) == ([], True), (command, err)
                continue
            assert denied, (command, code, out, err)
            for line in denied:
                assert line["principal"] == NOBODY
                assert TABLE[ApiKey[line["request"]]], line
