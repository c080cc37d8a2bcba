"""Groups whose members are of both protocols, come to know others and change from one to the other, while much goes wrong.

Members of the classic protocol know one assignor or several, and are cooperative or not; some are static and come back with the
other protocol. They come, leave, fall silent, the coordinator starts again, and appends fail. A group of the consumer protocol has
a member of it; when everybody is heard of again no partition is read by two, and in the end everybody who is left has a part of the
topic, and the group is of the type that its members make it.
"""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from app.core.errors import ErrorCode, RequestRejected
from app.groups.classic.classic import ClassicGroup
from app.groups.consumer.consumer import ConsumerGroup
from tests.groups.migrating import NewConsumer, OldConsumer, check_owned_once, kind, make_bench, settle
from tests.groups.shards import GROUP

COOPERATIVE, RANGE = "cooperative-sticky", "range"
PROTOCOLS = ((COOPERATIVE,), (COOPERATIVE, RANGE), (RANGE, COOPERATIVE))
"""What members of the classic protocol know; all of them have one in common."""
CLIENTS_MAX = 4
STEP_MS = 5000

numbers = st.integers(0, CLIENTS_MAX - 1)


class MigrationMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.bench = make_bench()
        self.old: list[OldConsumer] = []
        self.new: list[NewConsumer] = []
        self.made = 0

    @property
    def clients(self) -> list[OldConsumer | NewConsumer]:
        return [*self.old, *self.new]

    def instance(self, number: int) -> str | None:
        """Of the next client: static ones are those that nobody else is."""
        name = f"i{number}"
        free = number % 2 and all(client.instance_id != name for client in self.clients)
        return name if free else None

    @rule(protocols=st.sampled_from(PROTOCOLS), number=numbers)
    def one_of_the_classic_protocol_comes(self, protocols: tuple[str, ...], number: int) -> None:
        if len(self.clients) < CLIENTS_MAX:
            self.old.append(OldConsumer(self.bench, instance_id=self.instance(number), protocols=protocols))

    @rule(number=numbers)
    def one_of_the_consumer_protocol_comes(self, number: int) -> None:
        if len(self.clients) < CLIENTS_MAX:
            self.made += 1
            self.new.append(NewConsumer(self.bench, f"n{self.made}", instance_id=self.instance(number)))

    @rule(number=numbers)
    def one_goes_on(self, number: int) -> None:
        self.live(number)

    @rule(rounds=st.integers(1, 4))
    def all_go_on(self, rounds: int) -> None:
        for _ in range(rounds):
            for number in range(len(self.clients)):
                self.live(number)
            self.bench.advance(500)

    def live(self, number: int) -> None:
        if number < len(self.clients):
            client = self.clients[number]
            if isinstance(client, OldConsumer):
                client.live()
            else:
                client.go_on()

    @rule(number=numbers, says=st.booleans())
    def one_leaves(self, number: int, says: bool) -> None:
        """Or is gone without a word."""
        if number < len(self.clients):
            self.stop(self.clients[number], says=says)

    def stop(self, client: OldConsumer | NewConsumer, *, says: bool) -> None:
        if isinstance(client, NewConsumer):
            self.new.remove(client)
            if says and client.epoch > 0:
                epoch = -1 if client.instance_id is None else -2
                self.bench.code(lambda *_: client.send(member_epoch=epoch, topic_partitions=[]))
        else:
            self.old.remove(client)
            if says and client.instance_id is None:
                self.bench.code(lambda shard, turn: shard.leave(turn, GROUP, [(client.member_id, None)]))

    @rule(number=numbers, protocols=st.sampled_from(PROTOCOLS))
    def one_comes_back_with_the_other_protocol(self, number: int, protocols: tuple[str, ...]) -> None:
        """As the same instance, if it is static."""
        if number >= len(self.clients):
            return
        client = self.clients[number]
        self.stop(client, says=True)
        if isinstance(client, NewConsumer):
            self.old.append(OldConsumer(self.bench, instance_id=client.instance_id, protocols=protocols))
        else:
            self.made += 1
            self.new.append(NewConsumer(self.bench, f"n{self.made}", instance_id=client.instance_id))

    @rule()
    def the_coordinator_starts_again(self) -> None:
        self.bench.restart()
        for client in self.old:
            client.lose_connection()

    @rule(number=numbers)
    def an_append_fails(self, number: int) -> None:
        if not self.new:
            return
        client = self.new[number % len(self.new)]
        group: Any = self.bench.shard.groups.get(GROUP)
        appended = len(self.bench.turn.batches)
        self.bench.turn.refuse_with = ErrorCode.COORDINATOR_NOT_AVAILABLE
        try:
            client.send()
        except RequestRejected:
            client.changed = True
        finally:
            self.bench.turn.refuse_with = None
        assert self.bench.shard.groups.get(GROUP) is group
        assert len(self.bench.turn.batches) == appended

    @rule(passed_ms=st.sampled_from((1000, 9000, 20_000)))
    def time_passes(self, passed_ms: int) -> None:
        self.bench.advance(passed_ms)

    @invariant()
    def the_type_of_the_group_is_that_of_its_members(self) -> None:
        group = self.bench.shard.groups.get(GROUP)
        if isinstance(group, ConsumerGroup) and group.members:
            assert any(not member.is_classic for member in group.members.values())

    def teardown(self) -> None:
        """Nothing fails any more: who is gone is found silent, and who is left settles."""
        for _ in range(14):
            for number in range(len(self.clients)):
                self.live(number)
            self.bench.advance(STEP_MS)
        if any(client.refused for client in self.old):
            # As with Kafka, only that helps where nobody else comes or goes: a group that was loaded knows one protocol of each
            # member until they join again.
            for client in self.old:
                if client.generation >= 0 and client.joining is None:
                    client.send_join()
        if self.clients:
            settle(self.bench, self.old, self.new)
            check_owned_once(self.old, self.new)
            assert kind(self.bench) is (ConsumerGroup if self.new else ClassicGroup)


MigrationMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
test_groups_of_both_protocols_settle_whatever_happens = MigrationMachine.TestCase


def test_a_static_member_of_the_classic_protocol_whose_session_is_over_joins_as_a_new_one() -> None:
    machine = MigrationMachine()
    machine.one_of_the_classic_protocol_comes(protocols=(COOPERATIVE,), number=1)
    for _ in range(3):
        machine.all_go_on(rounds=4)
    machine.one_of_the_consumer_protocol_comes(number=0)
    machine.one_goes_on(number=1)
    machine.time_passes(passed_ms=20_000)
    machine.old[0].send_join()
    machine.teardown()


def test_a_static_member_that_vanished_is_replaced_when_its_session_is_over() -> None:
    machine = MigrationMachine()
    machine.one_of_the_consumer_protocol_comes(number=1)
    machine.all_go_on(rounds=1)
    machine.one_leaves(number=0, says=False)
    machine.one_of_the_consumer_protocol_comes(number=1)
    machine.teardown()


def test_a_member_whose_protocol_a_coordinator_that_was_just_loaded_does_not_know_joins_later() -> None:
    machine = MigrationMachine()
    machine.one_of_the_consumer_protocol_comes(number=1)
    machine.all_go_on(rounds=1)
    machine.one_leaves(number=0, says=False)
    machine.one_of_the_classic_protocol_comes(number=0, protocols=(COOPERATIVE,))
    machine.one_of_the_classic_protocol_comes(number=1, protocols=(RANGE, COOPERATIVE))
    machine.one_goes_on(number=1)
    machine.the_coordinator_starts_again()
    machine.all_go_on(rounds=1)
    machine.all_go_on(rounds=1)
    machine.teardown()


def test_who_does_not_know_the_protocol_of_a_loaded_group_joins_when_the_others_join_again() -> None:
    machine = MigrationMachine()
    machine.one_of_the_classic_protocol_comes(number=0, protocols=(RANGE, COOPERATIVE))
    machine.all_go_on(rounds=1)
    machine.time_passes(passed_ms=9000)
    machine.all_go_on(rounds=2)
    machine.the_coordinator_starts_again()
    machine.one_of_the_classic_protocol_comes(number=0, protocols=(COOPERATIVE,))
    machine.one_goes_on(number=1)
    machine.one_goes_on(number=1)
    assert machine.old[1].refused
    machine.teardown()


def test_a_member_of_the_classic_protocol_whose_assignment_got_lost_on_the_way_asks_for_it_again() -> None:
    machine = MigrationMachine()
    machine.one_of_the_consumer_protocol_comes(number=0)
    machine.one_of_the_consumer_protocol_comes(number=0)
    machine.one_goes_on(number=1)
    machine.the_coordinator_starts_again()
    machine.one_comes_back_with_the_other_protocol(number=0, protocols=(COOPERATIVE,))
    machine.all_go_on(rounds=4)
    machine.the_coordinator_starts_again()
    machine.teardown()
