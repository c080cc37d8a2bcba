"""Who speaks, and what of that counts: nobody is served by what another caller taught; throttle times are told and kept."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from app.configs import BrokerConfig
from app.handlers.policy.callers import ANONYMOUS, Caller, Quotas, Rights
from app.handlers.policy.client_quotas import ClientQuotas
from app.handlers.state.fetch_fan_out import FanOut, FetchKind
from app.metadata.image.records import QuotaEntity
from app.wire.apikeys import ApiKey
from app.wire.apis.api_versions import ApiVersionsRequest
from app.wire.apis.init_producer_id import InitProducerIdRequest
from app.wire.fetch import decode_fetch
from app.wire.produce import decode_produce, encode_produce_request
from tests.handlers.conversation import Talk, batch
from tests.handlers.fakes import Bench
from tests.handlers.fetching import ask, asked, on_disk, only, request
from tests.handlers.producing import ask_to_produce
from tests.support.quotas import NotedQuotas

HELLO = ApiVersionsRequest("test", "1.0")
FETCH, PRODUCE = 1, 0


class Doorkeeper:
    """Each new connection speaks for the next principal; rights that are taken away are replaced."""

    def __init__(self, *principals: str) -> None:
        self._next = list(principals)
        self.rights = {principal: Rights(principal) for principal in principals}
        self.admitted: list[Caller] = []

    def admit(self, listener: str, host: str, port: int) -> Caller:
        caller = Caller(self.rights[self._next.pop(0)], listener, host, port)
        self.admitted.append(caller)
        return caller

    def renew(self, caller: Caller) -> Caller:
        return Caller(self.rights[caller.principal], caller.listener, caller.host, caller.port)

    def change_rules(self) -> None:
        for principal, rights in self.rights.items():
            rights.valid = False
            self.rights[principal] = Rights(principal)


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The API of each Produce and Fetch that was decoded in full."""
    keys: list[int] = []

    def noting(key: int, decode: Callable[..., Any]) -> Callable[..., Any]:
        def note(*arguments: Any) -> Any:
            keys.append(key)
            return decode(*arguments)

        return note

    monkeypatch.setattr("app.handlers.produce.produce.decode_produce", noting(PRODUCE, decode_produce))
    monkeypatch.setattr("app.handlers.fetch.fetch.decode_fetch", noting(FETCH, decode_fetch))
    return keys


async def several(client: Talk, key: int) -> None:
    for _ in range(3):
        if key == PRODUCE:
            assert (await ask_to_produce(client, 9, "t", batch(1))).error_code == 0
        else:
            assert only(await ask(client, 12, request(asked(0)))).error_code == 0


@pytest.mark.parametrize("key", [PRODUCE, FETCH])
async def test_a_request_goes_the_short_way_only_where_the_same_rights_taught_it(start, connect, decoded, key):
    bench = await start()
    bench.logs.add("t")
    bench.context.doorkeeper = Doorkeeper("User:a", "User:b", "User:b")
    first, second, third = [await connect(bench) for _ in range(3)]
    await several(first, key)
    assert decoded == [key]
    await several(second, key)
    assert decoded == [key] * 2, "another principal"
    await several(third, key)
    # A connection learns its Fetch requests by itself; what Produce requests are like is learnt for all with the same rights.
    assert decoded == [key] * (2 if key == PRODUCE else 3)


@pytest.mark.parametrize("key", [PRODUCE, FETCH])
async def test_nothing_that_was_learnt_counts_after_the_rules_changed(start, connect, decoded, key):
    bench = await start()
    bench.logs.add("t")
    doorkeeper = bench.context.doorkeeper = Doorkeeper("User:a")
    client = await connect(bench)
    await several(client, key)
    doorkeeper.change_rules()
    await several(client, key)
    assert decoded == [key] * 2


async def test_an_answer_that_is_kept_for_many_consumers_is_kept_for_those_with_the_same_rights(
    start, connect, tmp_path, monkeypatch
):
    bench = await start()
    bench.context.doorkeeper = Doorkeeper("User:a", "User:b")
    client, other = await connect(bench), await connect(bench)
    await on_disk(client, bench, tmp_path / "log", *[40_000] * 9)
    found: list[Any] = []
    find = FanOut.find

    def noted(self: FanOut, partitions: Any, kind: FetchKind, offset: int, now_s: float) -> Any:
        found.append(find(self, partitions, kind, offset, now_s))
        return found[-1]

    monkeypatch.setattr(FanOut, "find", noted)
    for offset in (5, 3, 3, 3):
        only(await ask(client, 12, request(asked(offset))))
    assert found.pop() is not None
    for offset in (5, 3):
        only(await ask(other, 12, request(asked(offset))))
    assert found.pop() is None


async def test_a_caller_is_known_by_listener_principal_and_address(start, connect):
    bench = await start()
    doorkeeper = bench.context.doorkeeper = Doorkeeper("User:a")
    client = await connect(bench)
    assert (await client.ask(ApiKey.API_VERSIONS, 3, HELLO)).error_code == 0
    (caller,) = doorkeeper.admitted
    host, port = client.writer.get_extra_info("sockname")
    assert (caller.listener, caller.principal, caller.host, caller.port) == ("PLAINTEXT", "User:a", host, port)


class Throttling(Quotas):
    """Throttles every request of one API by so much, and says what it was asked."""

    def __init__(self, key: int, throttle_time_ms: int) -> None:
        self._key, self._throttle_time_ms = key, throttle_time_ms
        self.charged: list[tuple[str, str | None, int, int]] = []

    def charge(self, caller: Caller, client_id: str | None, api_key: int, size_bytes: int) -> int:
        self.charged.append((caller.principal, client_id, api_key, size_bytes))
        return self._throttle_time_ms if api_key == self._key else 0


class Timers:
    """The loop's timers of connections that rest, which a test lets run out."""

    def __init__(self, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waiting: list[tuple[float, Callable[[], None]]] = []
        loop, waiting = bench.server.loop, self.waiting

        class Loop:
            def __getattr__(self, name: str) -> Any:
                return getattr(loop, name)

            def call_later(self, delay_s: float, callback: Callable[..., None], *arguments: Any) -> Any:
                if getattr(callback, "__name__", "") != "_over":
                    return loop.call_later(delay_s, callback, *arguments)
                waiting.append((delay_s, callback))
                return SimpleNamespace(cancel=waiting.clear)

        monkeypatch.setattr(bench.server, "loop", Loop())

    def run_out(self) -> None:
        waiting = tuple(self.waiting)
        self.waiting.clear()
        for _, callback in waiting:
            callback()


async def one(client: Talk, bench: Bench, key: int, version: int) -> Any:
    if key == PRODUCE:
        topic = bench.logs.get("t", 0).topic_id if version >= 13 else "t"  # type: ignore[union-attr]
        return await client.produce(version, [(topic, [(0, batch(1))])])
    if key == FETCH:
        topic = bench.logs.get("t", 0).topic_id if version >= 13 else "t"  # type: ignore[union-attr]
        return await ask(client, version, request(asked(3), topic=topic))
    return await client.ask(ApiKey.INIT_PRODUCER_ID, version, InitProducerIdRequest(transaction_timeout_ms=1000))


@pytest.mark.parametrize(
    ("key", "version"),
    [(PRODUCE, 3), (PRODUCE, 9), (PRODUCE, 13), (FETCH, 4), (FETCH, 11), (FETCH, 17), (22, 0), (22, 5)],
)
async def test_a_throttle_time_is_told_on_every_way_and_the_connection_is_not_read_meanwhile(
    start, connect, tmp_path, monkeypatch, key, version
):
    bench = await start()
    client = await connect(bench)
    await on_disk(client, bench, tmp_path / "log", *[40_000] * 9)
    timers = Timers(bench, monkeypatch)
    quotas = bench.context.quotas = Throttling(key, 250)
    hello = bench.context.metrics.meter(ApiKey.API_VERSIONS).requests
    for turn in range(1, 6):  # the long way, the short way, and for Fetch the answer that is kept
        answer = await one(client, bench, key, version)
        assert answer.throttle_time_ms == 250
        assert [delay_s for delay_s, _ in timers.waiting] == [0.25]
        sent = client.send(ApiKey.API_VERSIONS, 3, HELLO)
        other = await connect(bench)
        assert (await other.ask(ApiKey.API_VERSIONS, 3, HELLO)).throttle_time_ms == 0
        await other.close()
        assert hello.value == 2 * turn - 1, "what came behind it has not been served"
        timers.run_out()
        assert (await client.answer(ApiKey.API_VERSIONS, 3))[0] == sent
    assert {charged[:3] for charged in quotas.charged} == {
        ("User:ANONYMOUS", "test", key),
        ("User:ANONYMOUS", "test", ApiKey.API_VERSIONS),
    }
    if key != 22:
        assert all(size > 60 for _, _, of, size in quotas.charged if of == key)


async def test_a_connection_that_rests_may_end(start, connect, monkeypatch):
    bench = await start()
    bench.logs.add("t")
    timers = Timers(bench, monkeypatch)
    bench.context.quotas = Throttling(PRODUCE, 60_000)
    client = await connect(bench)
    await one(client, bench, PRODUCE, 9)
    await client.close()
    other = await connect(bench)
    assert (await other.ask(ApiKey.API_VERSIONS, 3, HELLO)).error_code == 0
    assert timers.waiting == []
    assert bench.lines == []


async def noted(bench: Bench, connect: Any) -> tuple[Talk, NotedQuotas, int]:
    """A client whose Produce requests go the short way, its quotas, and the size of each of its requests."""
    bench.logs.add("t")
    client = await connect(bench)
    await one(client, bench, PRODUCE, 9)  # the long way
    quotas = bench.context.quotas = NotedQuotas()
    await one(client, bench, PRODUCE, 9)
    [(_, size)] = quotas.charged
    quotas.charged.clear()
    return client, quotas, size


async def test_each_request_is_charged_for_all_its_bytes_whatever_way_it_goes(start, connect):
    client, quotas, size = await noted(await start(), connect)
    for _ in range(3):
        client.send_produce(9, [("t", [(0, batch(1))])])
    client.send(ApiKey.API_VERSIONS, 3, HELLO)
    for _ in range(2):
        client.send_produce(9, [("t", [(0, batch(1))])])
    for key, version in ((PRODUCE, 9), (PRODUCE, 9), (PRODUCE, 9), (18, 3), (PRODUCE, 9), (PRODUCE, 9)):
        assert (await client.answer(key, version))[1].throttle_time_ms == 0
    assert [key for key, _ in quotas.charged] == [PRODUCE] * 3 + [18] + [PRODUCE] * 2
    assert {of for key, of in quotas.charged if key == PRODUCE} == {size}


async def test_a_request_beyond_the_limit_is_told_to_wait_on_the_short_way(start, connect):
    bench = await start()
    client, quotas, size = await noted(bench, connect)
    quotas.follow({QuotaEntity("ANONYMOUS", None, None): {"producer_byte_rate": 2.5 * size}})
    for _ in range(3):
        client.send_produce(9, [("t", [(0, batch(1))])])
    assert [(await client.answer(PRODUCE, 9))[1].throttle_time_ms for _ in range(3)] == [0, 0, 200]
    other = await connect(bench)
    assert (await other.produce(9, [("t", [(0, batch(1))])])).throttle_time_ms == 600
    assert quotas.charged == [(PRODUCE, size)] * 4


async def test_changed_limits_count_from_the_next_request_on_for_those_that_go_the_short_way(
    start, connect, monkeypatch, decoded
):
    bench = await start()
    timers = Timers(bench, monkeypatch)
    client, _, size = await noted(bench, connect)
    quotas = bench.context.quotas = ClientQuotas(BrokerConfig(node_id=1), lambda: 1000.0)
    user, program = QuotaEntity("ANONYMOUS", None, None), QuotaEntity("ANONYMOUS", "test", None)

    async def told(requests: int) -> list[int]:
        times = []
        for _ in range(requests):
            times.append((await one(client, bench, PRODUCE, 9)).throttle_time_ms)
            timers.run_out()
        return times

    assert await told(2) == [0, 0], "no limit"
    quotas.follow({user: {"producer_byte_rate": 100.0 * size}})
    assert await told(3) == [0, 0, 0]
    quotas.follow({user: {"producer_byte_rate": 2.0 * size}})
    assert await told(3) == [0, 0, 500]
    quotas.follow({user: {"producer_byte_rate": 2.0 * size}, program: {"producer_byte_rate": 4.0 * size}})
    assert await told(5) == [0, 0, 0, 0, 250], "a closer limit"
    quotas.follow({program: {"consumer_byte_rate": 1.0}})
    assert await told(2) == [0, 0]
    quotas.follow({user: {"producer_byte_rate": 2.0 * size}})
    assert await told(1) == [1000], "what was taken stays taken"
    assert decoded == [PRODUCE]


def frame_of(client_id: str) -> bytes:
    pieces = encode_produce_request(9, 1, client_id, [("t", [(0, batch(1))])], acks=-1, timeout_ms=60_000)
    return b"".join(bytes(piece) for piece in pieces)


async def told_of(client: Talk, *client_ids: str) -> list[int]:
    """The throttle times of requests that are sent together."""
    client.writer.write(b"".join(map(frame_of, client_ids)))
    return [(await client.answer(PRODUCE, 9))[1].throttle_time_ms for _ in client_ids]


async def test_clients_on_the_short_way_pay_for_what_each_of_them_sends(start, connect, decoded):
    bench = await start()
    bench.logs.add("t")
    client = await connect(bench)
    quotas = bench.context.quotas = ClientQuotas(BrokerConfig(node_id=1), lambda: 1000.0)
    quotas.follow({QuotaEntity("ANONYMOUS", "", None): {"producer_byte_rate": 1e6}})
    sent = ["a", "bb", "a", "a", "bb", "a", "bb", "bb", "bb", *["a"] * 40]
    assert await told_of(client, *sent) == [0] * len(sent)
    who = Caller(Rights(ANONYMOUS))
    for client_id in ("a", "bb"):
        taken = sent.count(client_id) * (len(frame_of(client_id)) - 4)
        assert quotas.charge(who, client_id, PRODUCE, 2_000_000) == pytest.approx(1000 + taken / 1000, abs=1)
    assert decoded == [PRODUCE] * 2


async def test_clients_on_the_short_way_pay_for_the_time_of_each_of_them(start, connect, decoded):
    bench = await start()
    bench.logs.add("t")
    client = await connect(bench)
    assert await told_of(client, "a", "bb") == [0, 0]
    now_s = 1000.0

    def looked() -> float:
        nonlocal now_s
        now_s += 0.025
        return now_s

    quotas = bench.context.quotas = ClientQuotas(BrokerConfig(node_id=1), looked)
    quotas.follow({QuotaEntity("ANONYMOUS", "", None): {"request_percentage": 20.0}})
    for _ in range(4):
        assert await told_of(client, "a", "bb") == [0, 0]
    left_s = [
        quotas.shares_of(Caller(Rights(ANONYMOUS)), client_id).time.balance(now_s) for client_id in ("a", "bb", "c")
    ]
    assert all(0 < of_client < 0.15 for of_client in left_s[:2]), "0.025 s each time, and hardly anything comes in"
    assert left_s[2] == pytest.approx(0.2)
    assert decoded == [PRODUCE] * 2


async def test_the_time_of_requests_on_the_short_way_counts(start, connect, monkeypatch, decoded):
    bench = await start()
    timers = Timers(bench, monkeypatch)
    client, _, _ = await noted(bench, connect)
    now_s = 1000.0

    def looked() -> float:
        nonlocal now_s
        now_s += 0.025
        return now_s

    quotas = bench.context.quotas = ClientQuotas(BrokerConfig(node_id=1), looked)
    quotas.follow({QuotaEntity("ANONYMOUS", None, None): {"request_percentage": 10.0}})
    told = []
    for _ in range(30):
        told.append((await one(client, bench, PRODUCE, 9)).throttle_time_ms)
        timers.run_out()
        now_s += told[-1] / 1000
    assert told[0] == 0
    served_s = 30 * 0.025
    assert sum(told) / 1000 >= (served_s - 0.1) / 0.1 * 0.9 - 1, "a tenth of the time, and a sample besides"
    assert max(told) <= 1000
    assert decoded == [PRODUCE]
