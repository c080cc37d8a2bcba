"""Long requests as several short ones."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from app.core.errors import ErrorCode, RequestRejected
from app.core.turns import PORTION_S, STRIDE
from app.handlers.base import portions
from app.handlers.base.portions import SLICE_FIRST, SLICE_S, Split, encode_long, serve_split
from app.handlers.base.request import Request
from app.wire.apikeys import ApiKey
from app.wire.apis.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse
from app.wire.apis.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from app.wire.codec import decode_response
from tests.support.callers import SOMEBODY
from tests.support.counted_loop import count_turns, on_counted_loop, work

NESTED = Split("topics", "topics", "partitions", "partitions", names=("name",), inner_name="partition_index")
FLAT = Split("coordinator_keys", "coordinators")
CONTEXT: Any = None


def request(key: int, version: int) -> Request:
    return Request(key, version, 1, "client", SOMEBODY, set())


class Handler:
    """Answers each partition with its number, and notes how many it was asked for at a time."""

    def __init__(self, cost_s: float = 0.0) -> None:
        self.cost_s = cost_s
        self.asked: list[int] = []
        self.pauses = 0

    def handle(self, context: Any, request: Request, message: ListOffsetsRequest) -> ListOffsetsResponse:
        self.asked.append(sum(len(topic.partitions) for topic in message.topics))
        work(self.cost_s * self.asked[-1])
        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    topic.name,
                    [ListOffsetsPartitionResponse(each.partition_index) for each in topic.partitions],
                )
                for topic in message.topics
            ]
        )


def refuse(request: Request, message: ListOffsetsRequest, code: ErrorCode, sentence: str) -> ListOffsetsResponse:
    return ListOffsetsResponse(
        topics=[
            ListOffsetsTopicResponse(
                topic.name, [ListOffsetsPartitionResponse(each.partition_index, code) for each in topic.partitions]
            )
            for topic in message.topics
        ]
    )


def asked(*counts: int) -> ListOffsetsRequest:
    return ListOffsetsRequest(
        topics=[
            ListOffsetsTopic(f"t{number}", [ListOffsetsPartition(index) for index in range(count)])
            for number, count in enumerate(counts)
        ]
    )


def shape(response: ListOffsetsResponse) -> list[tuple[str, list[int]]]:
    return [(topic.name, [each.partition_index for each in topic.partitions]) for topic in response.topics]


@pytest.mark.parametrize("counts", [(5,), (500,), (0, 1, 0), (40, 300, 0, 2), (1,) * 200, (31, 32, 33)])
@on_counted_loop
async def test_the_pieces_of_a_request_together_are_answered_as_the_whole(counts: tuple[int, ...]) -> None:
    handler, message = Handler(), asked(*counts)
    whole = shape(handler.handle(CONTEXT, request(2, 7), message))
    pieces = await serve_split(NESTED, handler.handle, refuse, CONTEXT, request(2, 7), message)
    assert shape(pieces) == whole
    assert NESTED.count(message) == sum(counts) + len(counts)


@on_counted_loop
async def test_a_piece_has_as_many_elements_as_fit_in_its_cpu_time() -> None:
    cheap, dear = Handler(cost_s=PORTION_S / 10_000), Handler(cost_s=PORTION_S)
    await serve_split(NESTED, cheap.handle, refuse, CONTEXT, request(2, 7), asked(10_000))
    assert len(cheap.asked) < 20
    await serve_split(NESTED, dear.handle, refuse, CONTEXT, request(2, 7), asked(SLICE_FIRST + 20))
    assert set(dear.asked[2:]) == {1}


@pytest.mark.parametrize("waits", [0, 1])
def test_the_work_of_a_handler_that_can_wait_counts_and_that_of_others_meanwhile_does_not(waits: int) -> None:
    asked_at_once: list[int] = []

    @on_counted_loop
    async def serve() -> None:
        handler = Handler(cost_s=SLICE_S / 20)

        async def handle(context: Any, request: Request, message: ListOffsetsRequest) -> ListOffsetsResponse:
            for _ in range(waits):
                asyncio.get_running_loop().call_soon(work, PORTION_S)
                await asyncio.sleep(0)
            return handler.handle(context, request, message)

        await serve_split(NESTED, handle, refuse, CONTEXT, request(ApiKey.LIST_OFFSETS, 7), asked(500))
        asked_at_once.extend(handler.asked)

    serve()
    assert asked_at_once[0] == SLICE_FIRST
    assert 15 <= max(asked_at_once) <= 20


@on_counted_loop
async def test_others_are_served_between_the_pieces() -> None:
    handler = Handler(cost_s=PORTION_S)
    long = serve_split(NESTED, handler.handle, refuse, CONTEXT, request(2, 7), asked(SLICE_FIRST + 20))
    assert await count_turns(long) >= 20


@on_counted_loop
async def test_an_error_of_a_later_piece_is_told_for_it_and_all_behind_it() -> None:
    handler = Handler()

    def handle(context: Any, request: Request, message: ListOffsetsRequest) -> ListOffsetsResponse:
        if handler.asked:
            raise RequestRejected(ErrorCode.NOT_LEADER_OR_FOLLOWER, "moved")
        return handler.handle(context, request, message)

    response = await serve_split(NESTED, handle, refuse, CONTEXT, request(2, 7), asked(100, 100))
    codes = [each.error_code for topic in response.topics for each in topic.partitions]
    first = handler.asked[0]
    assert codes == [0] * first + [ErrorCode.NOT_LEADER_OR_FOLLOWER] * (200 - first)
    assert [topic.name for topic in response.topics] == ["t0", "t1"]


@on_counted_loop
async def test_an_error_of_the_first_piece_is_the_errors_of_all() -> None:
    def handle(context: Any, request: Request, message: Any) -> Any:
        raise RequestRejected(ErrorCode.INVALID_REQUEST, "no")

    with pytest.raises(RequestRejected, match="no"):
        await serve_split(NESTED, handle, refuse, CONTEXT, request(2, 7), asked(100))


@on_counted_loop
async def test_a_client_that_leaves_ends_what_only_reads() -> None:
    handler = Handler(cost_s=PORTION_S)
    leaving = request(2, 7)

    def handle(context: Any, request: Request, message: Any) -> Any:
        for waiting in tuple(leaving.on_close):
            waiting.cancel()
        return handler.handle(context, request, message)

    await serve_split(NESTED, handle, refuse, CONTEXT, leaving, asked(1_000))
    assert len(handler.asked) == 1
    handler.asked.clear()
    await serve_split(NESTED._replace(writes=True), handle, refuse, CONTEXT, leaving, asked(1_000))
    assert sum(handler.asked) == 1_000


@on_counted_loop
async def test_repeats_are_served_once_or_refused_once() -> None:
    repeats = ListOffsetsRequest(topics=[*asked(3, 1).topics, *asked(2).topics, ListOffsetsTopic("t0")] * 50)
    handler = Handler()
    response = await serve_split(NESTED, handler.handle, refuse, CONTEXT, request(2, 7), repeats)
    assert shape(response) == [("t0", [0, 1, 2]), ("t1", [0]), ("t0", [])]
    handler.asked.clear()
    split = NESTED._replace(refuses_repeats=ErrorCode.INVALID_REQUEST)
    once = ListOffsetsTopic("t2", [ListOffsetsPartition(7)])
    repeats = ListOffsetsRequest(topics=[*repeats.topics, once])
    response = await serve_split(split, handler.handle, refuse, CONTEXT, request(2, 7), repeats)
    codes = {
        (topic.name, each.partition_index): each.error_code for topic in response.topics for each in topic.partitions
    }
    bad = ErrorCode.INVALID_REQUEST
    assert codes == {("t2", 7): 0, ("t0", 0): bad, ("t0", 1): bad, ("t0", 2): bad, ("t1", 0): bad}
    assert sum(handler.asked) == 1


class Looked(str):
    """A name that counts how often it is looked for."""

    __slots__ = ()
    count = 0

    def __hash__(self) -> int:
        Looked.count += 1
        return str.__hash__(self)

    __eq__ = str.__eq__


def test_names_are_told_apart_in_short_steps_however_often_they_are_repeated() -> None:
    for names in (1, 7, 32, 40, 10_000):
        keys: list[str] = [Looked(f"key-{number % names}") for number in range(10_000)]
        longest, begun = 0, Looked.count
        for _ in FLAT.told_apart(FindCoordinatorRequest(coordinator_keys=keys)):
            longest, begun = max(longest, Looked.count - begun), Looked.count
        assert longest <= 3 * STRIDE, names


@on_counted_loop
async def test_a_flat_list_is_split_and_joined() -> None:
    def handle(context: Any, request: Request, message: FindCoordinatorRequest) -> FindCoordinatorResponse:
        return FindCoordinatorResponse(coordinators=[Coordinator(key) for key in message.coordinator_keys])

    message = FindCoordinatorRequest(coordinator_keys=[f"g{number}" for number in range(1_000)])
    response = await serve_split(FLAT, handle, refuse, CONTEXT, request(10, 6), message)
    assert [each.key for each in response.coordinators] == message.coordinator_keys


@on_counted_loop
async def test_a_response_is_encoded_in_portions_and_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    key = int(ApiKey.FIND_COORDINATOR)
    response = FindCoordinatorResponse(coordinators=[Coordinator("k" * 100) for _ in range(1_000)])
    frame = await encode_long(request(key, 6), response)
    assert decode_response(key, 6, frame[9:]) == response
    monkeypatch.setattr(portions, "RESPONSE_BYTES_MAX", 50_000)
    with pytest.raises(RequestRejected, match="more than 50000 bytes"):
        await encode_long(request(key, 6), response)


class Stored:
    """Answers at once, and stores later. Notes which numbers were asked for, in order."""

    def __init__(self, fails: int = -1) -> None:
        self.asked: list[int] = []
        self.stored = asyncio.Event()
        self.fails = fails
        """Of this piece it fails to store what it was asked for."""
        self.pieces = 0

    def handle(self, context: Any, request: Request, message: ListOffsetsRequest) -> Any:
        self.asked += [each.partition_index for topic in message.topics for each in topic.partitions]
        self.pieces += 1
        return self._when_stored(self.pieces, Handler().handle(context, request, message))

    async def _when_stored(self, piece: int, response: ListOffsetsResponse) -> ListOffsetsResponse:
        await self.stored.wait()
        if piece == self.fails:
            raise RequestRejected(ErrorCode.NOT_COORDINATOR, "moved")
        return response


OVERLAPS = NESTED._replace(overlaps=True, keeps_repeats=True, first=10, at_once=10)


@on_counted_loop
async def test_pieces_that_overlap_do_not_wait_for_each_other_and_keep_repeats_and_order() -> None:
    handler, message = Stored(), asked(25, 5)
    message.topics[0].partitions[3].partition_index = 4
    wanted = [each.partition_index for topic in message.topics for each in topic.partitions]
    serving = asyncio.ensure_future(serve_split(OVERLAPS, handler.handle, refuse, CONTEXT, request(2, 7), message))
    for _ in range(1_000):
        await asyncio.sleep(0)
    assert not serving.done()
    assert handler.asked == wanted
    assert handler.pieces > 1
    handler.stored.set()
    assert shape(await serving) == [
        (one.name, [each.partition_index for each in one.partitions]) for one in message.topics
    ]


@on_counted_loop
async def test_what_a_piece_could_not_store_is_told_for_that_piece() -> None:
    handler = Stored(fails=1)
    handler.stored.set()
    response = await serve_split(OVERLAPS, handler.handle, refuse, CONTEXT, request(2, 7), asked(25, 25))
    codes = [each.error_code for topic in response.topics for each in topic.partitions]
    assert len(codes) == 50
    assert codes[:9] == [ErrorCode.NOT_COORDINATOR] * 9
    assert codes[-1] == ErrorCode.NONE
