"""Who takes the place of another asks it first and tells it afterwards (ADR 0018)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any
from uuid import UUID

import pytest

from app.metadata.image.records import Endpoint
from app.metadata.peers.place import ASK_S, Holder, Stranger
from app.metadata.view.registration import StartRefused
from app.objectstore.memory import MemoryStore
from tests.metadata.controllers import PUT, make
from tests.metadata.support import on_virtual_time, requests_of, uuid_of
from tests.support.virtual_loop import VirtualLoop


def test_a_broker_that_tells_of_no_records_of_its_own_has_none() -> None:
    holder = Holder("cluster", 1, uuid_of(1))
    assert (holder.looks, holder.untiered_bytes, holder.untiered_partitions) == (False, 0, 0)


class Asked:
    """Endpoints, and whoever answers there."""

    def __init__(self, answer: Callable[[str], Holder | Stranger | None] | None) -> None:
        """None never answers."""
        self._answer = answer
        self.told: list[str] = []
        self.addresses: list[str] = []

    async def ask(
        self, endpoint: Endpoint, *, cluster_id: str, node_id: int, directory_id: UUID, replaced_by: str = ""
    ) -> Holder | Stranger | None:
        del node_id, directory_id
        self.addresses.append(f"{endpoint.host}:{endpoint.port}")
        self.told.append(replaced_by)
        if self._answer is None:
            await asyncio.get_running_loop().create_future()
            raise AssertionError
        await asyncio.sleep(0.01)
        return self._answer(cluster_id)


def old_one(**more: Any) -> Callable[[str], Holder]:
    return lambda cluster_id: Holder(cluster_id, 1, uuid_of(1), **more)


async def silent(store: MemoryStore) -> None:
    """The broker with directory 1 was heard of last 31 s ago."""
    await make(store).start()
    await asyncio.sleep(31)


def test_who_cannot_be_asked_is_not_replaced() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        await silent(store)
        before = len(store.history)
        places = Asked(lambda _: Stranger("its certificate is not trusted."))
        with pytest.raises(
            StartRefused,
            match=r"cannot be asked .*: its certificate is not trusted\. It may be that broker, .* Mend .* --take-over",
        ):
            await make(store, 2, places=places).start()
        assert PUT not in requests_of(store, before)

    on_virtual_time(main)


def test_who_is_silent_in_the_store_but_answers_is_not_replaced() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        await silent(store)
        before = len(store.history)
        places = Asked(old_one())
        with pytest.raises(StartRefused, match=r"Node id 1 is in use .* which answers at 127\.0\.0\.1:9092 though"):
            await make(store, 2, places=places).start()
        assert PUT not in requests_of(store, before)
        assert places.told == [""], "it was asked, and told nothing"

    on_virtual_time(main)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(lambda _: None, id="nobody"),
        pytest.param(lambda _: Holder("another", 1, uuid_of(1)), id="another cluster"),
        pytest.param(lambda cluster: Holder(cluster, 2, uuid_of(1)), id="another node"),
        pytest.param(lambda cluster: Holder(cluster, 1, uuid_of(3)), id="another directory"),
        pytest.param(None, id="silence"),
    ],
)
def test_whoever_else_answers_at_its_address_is_not_that_broker(
    answer: Callable[[str], Holder | Stranger | None] | None,
) -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        await silent(store)
        began_s = loop.time()
        lines: list[str] = []
        new = make(store, 2, places=Asked(answer), log_line=lines.append)
        await new.start()
        assert new.registration.took_over
        assert loop.time() - began_s < 2 * ASK_S + 1
        (line,) = lines
        assert f"data directory {uuid_of(1)} did not answer at 127.0.0.1:9092" in line
        assert "these records would be lost" in line

    on_virtual_time(main)


def test_by_force_it_is_not_asked_but_told_once_the_registration_is_durable() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        await make(store).start()
        lines: list[str] = []
        puts: list[int] = []

        def answer(cluster_id: str) -> Holder:
            puts.append(requests_of(store).get(PUT, 0))
            return old_one(looks=True, untiered_bytes=77, untiered_partitions=3)(cluster_id)

        places = Asked(answer)
        before = requests_of(store).get(PUT, 0)
        new = make(store, 2, take_over=True, places=places, log_line=lines.append)
        await new.start()
        assert places.told == [new.view.writer_id]
        assert puts == [before + 2], "the seal and the registration"
        (line,) = lines
        assert "was told at 127.0.0.1:9092 that it is replaced" in line
        assert "77 bytes of 3 partitions" in line

    on_virtual_time(main)


def test_who_was_told_a_moment_ago_by_somebody_else_is_told_again() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        await make(store).start()
        lines: list[str] = []
        began_s = loop.time()
        answer = lambda cluster_id: old_one(looks=loop.time() - began_s > 2)(cluster_id)  # noqa: E731
        await make(store, 2, take_over=True, places=Asked(answer), log_line=lines.append).start()
        assert "was told" in lines[0]
        # For ever told by others, it does not keep anybody from starting.
        await make(store, 3, take_over=True, places=Asked(old_one()), log_line=lines.append).start()
        assert "did not answer" in lines[1]

    on_virtual_time(main)


def test_the_bound_directory_asks_and_tells_nobody() -> None:
    async def main(loop: VirtualLoop, store: MemoryStore) -> None:
        await make(store).start()
        places = Asked(None)
        began_s = loop.time()
        await make(store, seed=1, places=places).start()
        assert (places.addresses, loop.time()) == ([], began_s)

    on_virtual_time(main)
