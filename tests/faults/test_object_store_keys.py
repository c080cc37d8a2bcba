"""An S3 server that refuses a broker's keys for a while: the broker says so and what to do, loses nothing, and goes on by itself
when its keys are good again."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka.admin import AdminClient

from tests.faults.faulty_proxy import REFUSALS, Fault, faulty_proxy
from tests.faults.object_brokers import ALONE, begin, outage
from tests.faults.object_load import TOPIC, check, wait_until_led
from tests.faults.served import STORE_PROCESS, Served, serving
from tests.support.ports import free_port
from tests.support.s3_server import CREDENTIALS, PASSWORD, USER, s3_server
from tests.support.waiting import block_until

pytestmark = pytest.mark.faults

MENDS = {
    "InvalidAccessKeyId": "the store does not know the access key; give this process credentials",
    "SignatureDoesNotMatch": "the secret key does not match the access key; give this process credentials",
    "ExpiredToken": "the session token has expired; renew it",
}
"""What the broker tells to do, by S3's code."""


def refusals(lines: list[str], code: str) -> Counter[str]:
    """The lines that name a code, each without its time, and how often each is there. All say what to do."""
    found = Counter(line.partition(" ")[2] for line in lines if code in line)
    assert found
    assert [line for line in found if MENDS[code] not in line] == []
    return found


async def refuse(broker: Served, code: str, cut: Callable[[], None], heal: Callable[[], None], away_s: float) -> None:
    """``firn serve`` with topics of every durability, whose keys are refused while it runs, and while it starts."""
    clients, process = await asyncio.to_thread(begin, broker)
    try:
        store_process = broker.child(STORE_PROCESS).pid
        await outage(clients, process, cut, heal, away_s)
        assert broker.child(STORE_PROCESS).pid == store_process, "it did not end"
        told = refusals(broker.lines, code)
        print(f"{code}: {told}")
        assert max(told.values()) == 1, told
        broker.kill()
        cut()
        broker.spawn()
        await asyncio.to_thread(block_until, lambda: any(code in line for line in broker.new_lines), "it is told")
        await asyncio.sleep(away_s)
        told = refusals(broker.new_lines, code)
        print(f"{code}: {told}")
        heal()
        await asyncio.to_thread(broker.wait_until_ready)
    finally:
        heal()
        await asyncio.to_thread(clients.stop)
    wait_until_led(AdminClient({"bootstrap.servers": broker.bootstrap}), TOPIC)
    records = check(broker.bootstrap, clients.writing, clients.following)
    assert PASSWORD not in broker.text
    print(f"{code} for {away_s:.0f} s: {records} records")


@pytest.mark.ci
@pytest.mark.parametrize("fault", [Fault.UNKNOWN_KEY, Fault.WRONG_SECRET, Fault.EXPIRED])
async def test_keys_that_are_refused_for_a_while_are_told_and_lose_nothing(tmp_path: Path, fault: Fault) -> None:
    with s3_server("moto", tmp_path / "bucket") as s3:
        async with faulty_proxy(s3.port, random.Random(31)) as proxy:
            store = s3.store_at(proxy.port)
            with serving(
                tmp_path,
                "--take-over",
                "--listen",
                f"127.0.0.1:{free_port()}",
                store=store,
                environment=CREDENTIALS,
                settings=ALONE,
                start=False,
            ) as broker:
                await asyncio.to_thread(broker.start)

                def cut() -> None:
                    proxy.fault = fault

                def heal() -> None:
                    proxy.fault = Fault.NONE

                await refuse(broker, REFUSALS[fault][1].decode(), cut, heal, 2)
                await asyncio.to_thread(broker.stop)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "keys", "code"),
    [
        ("s3s-fs", (USER, "another-secret"), "SignatureDoesNotMatch"),
        ("MinIO", (USER, "another-secret"), "SignatureDoesNotMatch"),
        ("MinIO", ("somebody", PASSWORD), "InvalidAccessKeyId"),
    ],
)
async def test_a_server_that_is_started_with_other_keys_for_a_while(
    tmp_path: Path, name: str, keys: tuple[str, str], code: str
) -> None:
    """Servers that check signatures."""
    with s3_server(name, tmp_path / "bucket") as s3:

        def restart(known: tuple[str, str]) -> None:
            if s3.keys != known:
                s3.kill()
                s3.keys = known
                s3.start()

        listen = ("--listen", f"127.0.0.1:{free_port()}")
        with serving(
            tmp_path, "--take-over", *listen, store=s3.store, environment=CREDENTIALS, settings=ALONE
        ) as broker:
            await refuse(broker, code, lambda: restart(keys), lambda: restart((USER, PASSWORD)), 5)
            await asyncio.to_thread(broker.stop)
