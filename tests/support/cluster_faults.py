"""What can happen to brokers of a cluster while clients work on it, and what clients must get done all the same.

faults = Faults(brokers, rng, loads)
faults.run(faults.all(), 50)
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Callable, Collection, Sequence
from typing import Final, Protocol, runtime_checkable

from tests.support.cluster import Brokers, controller_of, seen, wait_until_whole
from tests.support.waiting import block_until

Fault = Callable[[], None]
ROUNDS: Final = 10
"""How often those get on that do without the store, where others wait for it."""


class Load(Protocol):
    """What a client does to the cluster, in threads or processes of its own."""

    name: str
    between_brokers: bool
    """Whether brokers write to each other for it: then it stands still where two of them that the controller hears do not hear each
    other."""

    def more(self) -> Callable[[], bool]:
        """Whether all of this load got something done since this call."""
        ...


@runtime_checkable
class Telling(Protocol):
    """A load that can tell in which calls of their libraries its clients are."""

    def doings(self) -> list[str]: ...


def wait_for_more(loads: Sequence[Load]) -> None:
    """Until each load has got something done that began now. What took how long is printed, for who reads of a failure."""
    began_s = time.monotonic()
    waiting = [(load, load.more()) for load in loads]
    for load, holds in waiting:
        try:
            block_until(holds, f"{load.name} get on")
        except AssertionError as error:
            told = f": {load.doings()}" if isinstance(load, Telling) else ""
            raise AssertionError(f"{error}{told}") from None
        print(f"    {load.name}: {time.monotonic() - began_s:.1f} s")


class Faults:
    """Each method does one thing to the cluster, waits until all loads get on all the same, and mends it."""

    def __init__(
        self,
        brokers: Brokers,
        rng: random.Random,
        loads: Sequence[Load],
        *,
        in_store: Collection[str] = (),
        without_store: Sequence[Load] | None = None,
    ) -> None:
        """``in_store``: topics whose records are in the object store, and on the disks of no replicas. ``without_store``: the loads
        that get on while brokers that the controller hears do not reach the store, if not all of them."""
        self._brokers = brokers
        self._admin = brokers.admin
        self._rng = rng
        self._loads = loads
        self._in_store = in_store
        self._without_store = loads if without_store is None else without_store
        self.victim: Callable[[], int] = lambda: rng.choice(brokers.nodes)
        """Says who is next."""
        self.count = 0
        """Faults so far."""
        self.done: list[str] = []
        """Names of faults that are over."""
        self.under_way = "before the first fault"
        self._hurt = False

    def phase(self) -> int:
        """An even number while nothing is hurt, another one each time."""
        return 2 * self.count + self._hurt

    def go_on(self, *, between_brokers: bool = True) -> None:
        """Until all loads get on; without ``between_brokers`` those alone for which brokers do not write to each other."""
        wait_for_more([load for load in self._loads if between_brokers or not load.between_brokers])

    def _go_on_without_store(self) -> None:
        """Until those get on that can. Others stand still by then: what they have begun is acknowledged or waits."""
        rounds = 1 if self._without_store is self._loads else ROUNDS
        for _ in range(rounds):
            wait_for_more(self._without_store)

    def settle(self, after: str) -> None:
        """Until all replicas are in sync."""
        began_s = time.monotonic()
        wait_until_whole(self._admin, after, self._in_store)
        print(f"{time.time():.2f} in sync after {after}: {time.monotonic() - began_s:.1f} s")

    def run(self, kinds: Sequence[Fault], count: int, goes_on: Callable[[], bool] = lambda: True) -> None:
        """Each of ``kinds`` in turn, then any of them, until there were ``count`` faults, or ``goes_on`` says no before one."""
        self.go_on()
        while self.count < count and goes_on():
            done = len(self.done)
            fault = kinds[done] if done < len(kinds) else self._rng.choice(kinds)
            self._hurt, self.under_way = True, f"fault {self.count + 1}, {fault.__name__}"
            print(f"{time.time():.2f} fault {self.count + 1}, {fault.__name__}")
            fault()
            self.settle(f"fault {self.count + 1}, {fault.__name__}")
            self.count, self._hurt, self.under_way = self.count + 1, False, f"after {self.under_way}"
            self.done.append(fault.__name__)
            self.go_on()

    # --- processes ----------------------------------------------------------------------------------------------------

    def _end(self, node_id: int, how: signal.Signals) -> None:
        self._brokers.end(node_id, how)
        self.go_on()

    def kill(self) -> None:
        node_id = self.victim()
        self._end(node_id, signal.SIGKILL)
        self._brokers.start(node_id)

    def kill_the_controller(self) -> None:
        node_id = controller_of(self._admin)
        self._end(node_id, signal.SIGKILL)
        self._brokers.start(node_id)

    def kill_in_turn(self) -> None:
        """All brokers, each as soon as the one before serves again, which may lack records then."""
        for node_id in self._rng.sample(self._brokers.nodes, len(self._brokers.nodes)):
            self._brokers.end(node_id, signal.SIGKILL)
            self._brokers.start(node_id)
            block_until(lambda node_id=node_id: self._brokers.is_up(node_id), f"broker {node_id} serves again")
        self.go_on()

    def stop(self) -> None:
        node_id = self.victim()
        self._end(node_id, signal.SIGTERM)
        self._brokers.start(node_id)

    def roll(self) -> None:
        """Stop and start each broker in turn. Each is a fault."""
        order = self._rng.sample(self._brokers.nodes, len(self._brokers.nodes))
        for node_id in order:
            self._end(node_id, signal.SIGTERM)
            self._brokers.start(node_id)
            if node_id != order[-1]:
                self.count += 1
                self.settle(f"broker {node_id} was rolled")

    def pause(self) -> None:
        node_id = self.victim()
        self._brokers.pause(node_id)
        self.go_on()
        self._brokers.go_on(node_id)

    def lose_the_disk(self) -> None:
        node_id = self.victim()
        self._end(node_id, signal.SIGKILL)
        self._brokers.lose_disk(node_id)
        self._brokers.start(node_id)

    # --- power --------------------------------------------------------------------------------------------------------

    def lose_power(self) -> None:
        """Of one broker's machine."""
        node_id = self.victim()
        self._lose_power_of([node_id])
        self.go_on()
        self._brokers.start(node_id)

    def lose_power_of_two(self) -> None:
        """At once. The third one has all that was acknowledged, and leads until they are back."""
        node_id = self.victim()
        others = [one for one in self._brokers.nodes if one != node_id]
        self._lose_power_of(others)
        block_until(lambda: self._is_alone(node_id), f"broker {node_id}, which was in sync, leads all")
        self._start(others)

    def lose_power_of_all(self) -> None:
        """At once. Nothing is lost of topics whose records are on disks before they are acknowledged."""
        self._lose_power_of(self._brokers.nodes)
        self._start(self._brokers.nodes)

    def lose_power_of_all_but_one(self) -> None:
        """All are killed at once, and one keeps its page cache. Nobody else may lead what is stored in memory, though the others
        come back first."""
        node_id = self.victim()
        others = [one for one in self._brokers.nodes if one != node_id]
        self._brokers.kill_at_once(self._brokers.nodes)
        self._brokers.lose_power(others, self._rng)
        self._start(others)
        block_until(lambda: {*seen(self._admin).brokers} == {*others}, f"brokers {others} are back")
        self._brokers.start(node_id)

    def _lose_power_of(self, node_ids: Sequence[int]) -> None:
        self._brokers.kill_at_once(node_ids)
        self._brokers.lose_power(node_ids, self._rng)

    def _start(self, node_ids: Sequence[int]) -> None:
        for node_id in self._rng.sample(node_ids, len(node_ids)):
            self._brokers.start(node_id)

    def _is_alone(self, node_id: int) -> bool:
        """Whether no other broker is in the cluster, and this one leads every partition."""
        found = seen(self._admin)
        leaders = {one.leader for topic in found.topics.values() for one in topic.partitions.values()}
        return {*found.brokers} == leaders == {node_id}

    # --- the network and the bucket -----------------------------------------------------------------------------------

    def cut_off(self) -> None:
        """One broker and the others do not hear each other; clients and the bucket hear all."""
        assert self._brokers.links is not None
        ways = self._brokers.links.apart([self.victim()], self._brokers.nodes)
        self._brokers.links.cut(ways)
        self.go_on()
        self._brokers.links.heal(ways)

    def cut_one_way(self) -> None:
        """Of two brokers, which both hear the third."""
        assert self._brokers.links is not None
        one, other = self._rng.sample(self._brokers.nodes, 2)
        self._brokers.links.cut([(one, other)])
        self.go_on(between_brokers=False)
        self._brokers.links.heal()

    def cut_beside_the_controller(self) -> None:
        """Two brokers do not hear each other, and the controller hears both."""
        assert self._brokers.links is not None
        controller = controller_of(self._admin)
        one, other = self._rng.sample([node_id for node_id in self._brokers.nodes if node_id != controller], 2)
        self._brokers.links.cut(self._brokers.links.apart([one], [other]))
        self.go_on(between_brokers=False)
        self._brokers.links.heal()

    def reset(self) -> None:
        assert self._brokers.links is not None
        self._brokers.links.reset(self._brokers.links.apart([self.victim()], self._brokers.nodes))
        self.go_on()

    def lose_the_bucket(self) -> None:
        node_id = self.victim()
        self._brokers.cut_bucket(node_id)
        self._go_on_without_store()
        self._brokers.heal_bucket(node_id)

    def all_lose_the_bucket(self) -> None:
        """Nothing of the cluster can change meanwhile."""
        for node_id in self._brokers.nodes:
            self._brokers.cut_bucket(node_id)
        self._go_on_without_store()
        for node_id in self._brokers.nodes:
            self._brokers.heal_bucket(node_id)

    def isolate(self) -> None:
        """One broker hears neither the others nor the bucket; clients hear it."""
        assert self._brokers.links is not None
        node_id = self.victim()
        ways = self._brokers.links.apart([node_id], self._brokers.nodes)
        self._brokers.cut_bucket(node_id)
        self._brokers.links.cut(ways)
        self.go_on()
        self._brokers.links.heal(ways)
        self._brokers.heal_bucket(node_id)

    # --- lists --------------------------------------------------------------------------------------------------------

    def all(self) -> list[Fault]:
        """One of each kind."""
        return [
            self.kill,
            self.stop,
            self.pause,
            self.reset,
            self.kill_the_controller,
            self.cut_off,
            self.lose_the_bucket,
            self.lose_the_disk,
            self.all_lose_the_bucket,
            self.isolate,
            self.cut_one_way,
            self.roll,
        ]

    def of_power(self, *, memory: bool = False) -> list[Fault]:
        """One of each kind that loses nothing where records are on disks, or in the ``memory`` of brokers, before they are
        acknowledged."""
        found = [self.lose_power_of_all_but_one, self.lose_power, self.lose_power_of_two]
        return found if memory else [self.lose_power_of_all, *found]

    def of_processes(self) -> list[Fault]:
        """Those that need no proxies."""
        return [self.kill, self.pause, self.stop]
