"""One connection: pipelining, negotiation, and every way in which an answer can fail to come."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from app.client.cluster import ClusterClient
from app.client.connection import KafkaConnection, open_connection
from app.core.errors import BrokerUnavailable, ErrorCode, ProtocolError, RequestRejected
from app.wire.apikeys import ApiKey
from app.wire.apis.api_versions import ApiVersion, ApiVersionsResponse
from app.wire.apis.find_coordinator import FindCoordinatorRequest
from app.wire.apis.metadata import MetadataRequest, MetadataRequestTopic
from app.wire.header import RequestHeader
from tests.client.scripted import NO_ANSWER, Cut, Raw, ScriptedBroker, scripted_broker
from tests.support.cycles import kept_in_cycles
from tests.support.ports import free_port


async def connect(broker: ScriptedBroker, **options: Any) -> KafkaConnection:
    return await open_connection("127.0.0.1", broker.port, **options)


def ask(connection: KafkaConnection, *names: str, timeout_ms: int = 30_000) -> asyncio.Task[Any]:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names])
    return asyncio.create_task(connection.request(ApiKey.METADATA, request, timeout_ms=timeout_ms))


async def test_an_answer_comes_back_decoded_in_the_newest_common_version() -> None:
    async with scripted_broker(flights=2) as broker:
        broker.versions[ApiKey.METADATA] = (0, 7)
        connection = await connect(broker)
        answer = await ask(connection, "flights")
        assert [topic.name for topic in answer.topics] == ["flights"]
        assert broker.seen[-1][0].api_version == 7
        await connection.close()


async def test_the_client_says_who_it_is() -> None:
    async with scripted_broker() as broker:
        connection = await connect(broker, client_id="me", software_version="1.2")
        header, hello = broker.seen[0]
        assert (header.client_id, hello.client_software_name, hello.client_software_version) == ("me", "firn", "1.2")
        await connection.close()


async def test_requests_are_sent_before_earlier_ones_are_answered() -> None:
    async with scripted_broker(a=1, b=1) as broker:
        release = asyncio.Event()

        @broker.on(ApiKey.METADATA)
        async def slow(header: RequestHeader, body: Any) -> Any:
            await release.wait()
            return broker.metadata([topic.name for topic in body.topics])

        connection = await connect(broker)
        tasks = [ask(connection, "a"), ask(connection, "b")]
        while connection.in_flight_count < 2:
            await asyncio.sleep(0)
        release.set()
        answers = await asyncio.gather(*tasks)
        assert [answer.topics[0].name for answer in answers] == ["a", "b"]
        await connection.close()


async def test_a_connection_whose_login_ends_answers_what_was_asked_and_closes() -> None:
    async with scripted_broker(a=1) as broker:
        release = asyncio.Event()

        @broker.on(ApiKey.METADATA)
        async def slow(header: RequestHeader, body: Any) -> Any:
            await release.wait()
            return broker.metadata(["a"])

        asked, idle = await connect(broker), await connect(broker)
        task = ask(asked, "a")
        while asked.in_flight_count < 1:
            await asyncio.sleep(0)
        for connection in (asked, idle):
            connection.lasts(0.01)
            while connection.usable:
                await asyncio.sleep(0.001)
        async with asyncio.timeout(60):
            while len(broker.writers) == 2:
                await asyncio.sleep(0.001)
        assert "has ended" in str(await failure_of(idle))
        assert asked.in_flight_count == 1
        release.set()
        assert [topic.name for topic in (await task).topics] == ["a"]
        assert "has ended" in str(await failure_of(asked))
        unlimited = await connect(broker)
        unlimited.lasts(None)
        assert unlimited.usable
        await unlimited.close()


async def failure_of(connection: KafkaConnection) -> Exception | None:
    try:
        await connection.send_only(ApiKey.METADATA, 0, b"")
    except BrokerUnavailable as error:
        return error
    return None


async def test_no_more_requests_are_under_way_than_allowed() -> None:
    async with scripted_broker(a=1) as broker:
        release = asyncio.Event()

        @broker.on(ApiKey.METADATA)
        async def slow(header: RequestHeader, body: Any) -> Any:
            await release.wait()
            return broker.metadata(["a"])

        connection = await connect(broker, in_flight_max=3)
        tasks = [ask(connection, "a") for _ in range(10)]
        for _ in range(50):
            await asyncio.sleep(0)
        assert connection.in_flight_count == 3
        release.set()
        assert len(await asyncio.gather(*tasks)) == 10
        await connection.close()


async def test_an_unknown_apiversions_version_is_asked_again_as_version_0() -> None:
    async with scripted_broker(a=1) as broker:

        @broker.on(ApiKey.API_VERSIONS)
        async def old(header: RequestHeader, body: Any) -> Any:
            if header.api_version > 0:
                # As KIP-511 has it: version 0's form, whatever was asked.
                return Raw(b"\x00\x23\x00\x00\x00\x01\x00\x12\x00\x00\x00\x00")
            return broker.api_versions()

        connection = await connect(broker)
        assert [header.api_version for header, _ in broker.seen] == [4, 0]
        assert connection.version_of(ApiKey.METADATA) == 13
        await connection.close()


async def test_an_api_that_both_sides_know_in_no_common_version_is_refused_in_words() -> None:
    async with scripted_broker() as broker:
        broker.versions[ApiKey.FETCH] = (19, 20)
        del broker.versions[ApiKey.FIND_COORDINATOR]
        connection = await connect(broker)
        with pytest.raises(RequestRejected, match="serves FETCH 19 to 20, this client speaks 4 to 18") as refused:
            connection.version_of(ApiKey.FETCH)
        assert refused.value.code is ErrorCode.UNSUPPORTED_VERSION
        with pytest.raises(RequestRejected, match="does not serve FIND_COORDINATOR"):
            await connection.request(ApiKey.FIND_COORDINATOR, FindCoordinatorRequest())
        await connection.close()


async def test_what_cannot_be_said_is_refused_and_the_connection_goes_on() -> None:
    async with scripted_broker() as broker:
        connection = await connect(broker)
        for version in (2, 4):
            request = FindCoordinatorRequest(key="x" * 32_768, coordinator_keys=["x" * 32_768])
            with pytest.raises(RequestRejected, match="FindCoordinator v") as refused:
                await connection.request(ApiKey.FIND_COORDINATOR, request, version=version)
            assert refused.value.code is ErrorCode.INVALID_REQUEST
        assert await connection.request(ApiKey.METADATA, MetadataRequest()) is not None
        await connection.close()


async def test_a_cut_connection_fails_everything_in_flight() -> None:
    async with scripted_broker() as broker:

        @broker.on(ApiKey.METADATA)
        async def cut(header: RequestHeader, body: Any) -> Any:
            raise Cut

        connection = await connect(broker)
        tasks = [ask(connection), ask(connection)]
        for result in await asyncio.gather(*tasks, return_exceptions=True):
            assert isinstance(result, BrokerUnavailable)
        assert not connection.usable
        with pytest.raises(BrokerUnavailable):
            await ask(connection)


async def test_a_request_that_times_out_ends_the_connection() -> None:
    async with scripted_broker() as broker:

        @broker.on(ApiKey.METADATA)
        async def never(header: RequestHeader, body: Any) -> Any:
            return NO_ANSWER

        connection = await connect(broker)
        with pytest.raises(BrokerUnavailable, match="did not answer Metadata within 20 ms"):
            await ask(connection, timeout_ms=20)
        assert not connection.usable


async def test_a_request_whose_caller_was_cancelled_is_in_flight_until_it_is_answered() -> None:
    async with scripted_broker(a=1, b=1) as broker:
        release, came = asyncio.Event(), asyncio.Event()

        @broker.on(ApiKey.METADATA)
        async def slow(header: RequestHeader, body: Any) -> Any:
            came.set()
            await release.wait()
            return broker.metadata([topic.name for topic in body.topics])

        connection = await connect(broker, in_flight_max=1)
        first = ask(connection, "a")
        await came.wait()
        first.cancel()
        await asyncio.wait([first])
        second = ask(connection, "b", timeout_ms=50)
        with pytest.raises(BrokerUnavailable, match="too far behind"):
            await second
        assert connection.in_flight_count == 1
        third = ask(connection, "b")
        release.set()
        assert [topic.name for topic in (await third).topics] == ["b"]
        await connection.close()


async def test_a_cancelled_caller_does_not_disturb_the_next_answer() -> None:
    async with scripted_broker(a=1, b=1) as broker:
        release = asyncio.Event()

        @broker.on(ApiKey.METADATA)
        async def slow(header: RequestHeader, body: Any) -> Any:
            await release.wait()
            return broker.metadata([topic.name for topic in body.topics])

        connection = await connect(broker)
        first, second = ask(connection, "a"), ask(connection, "b")
        while connection.in_flight_count < 2:
            await asyncio.sleep(0)
        first.cancel()
        await asyncio.sleep(0)
        release.set()
        assert (await second).topics[0].name == "b"
        await connection.close()


async def test_an_answer_that_does_not_decode_ends_the_connection() -> None:
    async with scripted_broker() as broker:

        @broker.on(ApiKey.METADATA)
        async def garbage(header: RequestHeader, body: Any) -> Any:
            return Raw(b"\xff" * 40)

        connection = await connect(broker)
        with pytest.raises(ProtocolError):
            await ask(connection)
        assert not connection.usable


async def speak(answer: bytes) -> asyncio.Server:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(4)
        writer.write(answer)
        await writer.drain()
        writer.close()

    return await asyncio.start_server(serve, "127.0.0.1", 0)


@pytest.mark.parametrize(
    ("answer", "complaint"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "is it a Kafka broker"),
        (b"\xff\xff\xff\xff", "is it a Kafka broker"),
        (b"\x00\x00\x00\x00", "is it a Kafka broker"),
        (b"\x00\x00\x00\x06\x00\x00\x00\x63\x00\x00", "answered request 99 where 0 was due"),
        (b"\x00\x00\x00\x06\x00\x00\x00\x00\x00\x00", "cannot be read|does not speak"),
        (b"", "closed the connection"),
    ],
    ids=["http", "negative size", "empty frame", "other request", "short body", "silence"],
)
async def test_whatever_else_listens_there_is_named_in_one_sentence(answer: bytes, complaint: str) -> None:
    server = await speak(answer)
    port = server.sockets[0].getsockname()[1]
    with pytest.raises(BrokerUnavailable, match=complaint) as failure:
        await open_connection("127.0.0.1", port)
    assert str(failure.value).startswith(f"127.0.0.1:{port} ")
    server.close()
    await server.wait_closed()


async def test_an_address_where_nothing_listens_is_named() -> None:
    port = free_port()
    with pytest.raises(BrokerUnavailable, match=f"127.0.0.1:{port} cannot be reached: .*refused"):
        await open_connection("127.0.0.1", port)


@pytest.mark.ci
async def test_frames_of_every_size_arrive_whole() -> None:
    async with scripted_broker() as broker:

        @broker.on(ApiKey.API_VERSIONS)
        async def wide(header: RequestHeader, body: Any) -> Any:
            answer = broker.api_versions()
            count = sizes[min(len(broker.seen) - 1, len(sizes) - 1)]
            answer.api_keys.extend(ApiVersion(20_000, 0, 0) for _ in range(count))
            return answer

        sizes = [0, 0, 1, 9_000, 9_362, 9_363, 9_364, 200_000, 5]
        connection = await connect(broker)
        seen = []
        for _ in sizes[1:]:
            answer: ApiVersionsResponse = await connection.request(ApiKey.API_VERSIONS, broker.seen[0][1])
            seen.append(sum(1 for api in answer.api_keys if api.api_key == 20_000))
        assert seen == sizes[1:]
        await connection.close()


async def test_closing_fails_what_is_in_flight_and_what_comes_later() -> None:
    async with scripted_broker() as broker:

        @broker.on(ApiKey.METADATA)
        async def never(header: RequestHeader, body: Any) -> Any:
            return NO_ANSWER

        connection = await connect(broker)
        waiting = ask(connection)
        while not connection.in_flight_count:
            await asyncio.sleep(0)
        await connection.close()
        await connection.close()
        with pytest.raises(BrokerUnavailable, match="was closed"):
            await waiting
        with pytest.raises(BrokerUnavailable, match="was closed"):
            await ask(connection)


async def test_a_request_that_fails_keeps_nothing_of_what_it_carried_until_a_garbage_collection() -> None:
    async with scripted_broker(flights=1) as broker:

        @broker.on(ApiKey.METADATA)
        async def cut(header: RequestHeader, body: Any) -> Any:
            return Cut()

        async def be_cut_off() -> None:
            connection = await connect(broker)
            try:
                await connection.request(
                    ApiKey.METADATA, MetadataRequest(topics=[MetadataRequestTopic(name="flights")]), timeout_ms=30_000
                )
            except BrokerUnavailable:
                await connection.close()
                return
            raise AssertionError("answered")

        assert await kept_in_cycles(be_cut_off) == []


async def test_a_topic_that_does_not_exist_leaves_nothing_in_the_client() -> None:
    async with (
        scripted_broker(flights=1) as broker,
        ClusterClient([("127.0.0.1", broker.port)], rng=random.Random(1)) as cluster,
    ):

        async def ask_for_nothing() -> None:
            try:
                await cluster.topic("missing")
            except RequestRejected:
                return
            raise AssertionError("there is no such topic")

        assert await kept_in_cycles(ask_for_nothing) == []
