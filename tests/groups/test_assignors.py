"""Server-side assignors: what every assignment must keep, for any group."""

from __future__ import annotations

import random
import uuid

from hypothesis import given, settings
from hypothesis import strategies as st

from app.groups.consumer.assignors import ASSIGNORS, Assignment, MemberSpec, TopicSpec, assign_range, assign_uniform

A, B, C = (uuid.UUID(int=number) for number in (1, 2, 3))


def members(*subscriptions: tuple[str, set[uuid.UUID]], **extra: Assignment) -> dict[str, MemberSpec]:
    return {name: MemberSpec(frozenset(ids), extra.get(name, {})) for name, ids in subscriptions}


def count(assignment: Assignment) -> int:
    return sum(map(len, assignment.values()))


@st.composite
def groups(draw: st.DrawFn) -> tuple[dict[str, MemberSpec], dict[uuid.UUID, TopicSpec]]:
    topics = {
        uuid.UUID(int=number + 1): TopicSpec(partitions)
        for number, partitions in enumerate(draw(st.lists(st.integers(1, 7), min_size=1, max_size=4)))
    }
    subscriptions = draw(
        st.lists(st.frozensets(st.sampled_from(sorted(topics)), max_size=len(topics)), min_size=1, max_size=6)
    )
    subscribed = frozenset[uuid.UUID]().union(*subscriptions)
    return (
        {f"m{number}": MemberSpec(ids, {}) for number, ids in enumerate(subscriptions)},
        {topic_id: spec for topic_id, spec in topics.items() if topic_id in subscribed},
    )


def check(specs: dict[str, MemberSpec], topics: dict[uuid.UUID, TopicSpec], assigned: dict[str, Assignment]) -> None:
    """Everything is owned once, by somebody who asked for it."""
    assert assigned.keys() == specs.keys()
    seen = set()
    for member_id, assignment in assigned.items():
        for topic_id, partitions in assignment.items():
            assert partitions, "no topic without a partition"
            assert topic_id in specs[member_id].topic_ids
            for partition in partitions:
                assert (topic_id, partition) not in seen, "owned twice"
                seen.add((topic_id, partition))
    assert len(seen) == sum(spec.partition_count for spec in topics.values())


@settings(max_examples=60)
@given(groups(), st.sampled_from(sorted(ASSIGNORS)))
def test_every_partition_has_one_owner_who_subscribes(
    group: tuple[dict[str, MemberSpec], dict[uuid.UUID, TopicSpec]], name: str
) -> None:
    specs, topics = group
    check(specs, topics, ASSIGNORS[name](specs, topics))


@settings(max_examples=60)
@given(groups())
def test_uniform_leaves_no_move_that_would_bring_two_members_closer(
    group: tuple[dict[str, MemberSpec], dict[uuid.UUID, TopicSpec]],
) -> None:
    specs, topics = group
    assigned = assign_uniform(specs, topics)
    for giver, assignment in assigned.items():
        for topic_id in assignment:
            for taker, spec in specs.items():
                if topic_id in spec.topic_ids:
                    assert count(assignment) - count(assigned[taker]) <= 1, (giver, taker, topic_id)


@settings(max_examples=60)
@given(groups(), st.data())
def test_uniform_keeps_what_is_in_order_and_gives_the_same_objects_back(
    group: tuple[dict[str, MemberSpec], dict[uuid.UUID, TopicSpec]], data: st.DataObject
) -> None:
    specs, topics = group
    first = assign_uniform(specs, topics)
    again = assign_uniform(
        {name: MemberSpec(spec.topic_ids, first[name]) for name, spec in reversed(specs.items())}, topics
    )
    for name in specs:
        assert again[name] is first[name]
    gone = data.draw(st.sampled_from(sorted(specs)))
    left = {name: MemberSpec(spec.topic_ids, first[name]) for name, spec in specs.items() if name != gone}
    subscribed = frozenset[uuid.UUID]().union(*(spec.topic_ids for spec in left.values()))
    topics = {topic_id: spec for topic_id, spec in topics.items() if topic_id in subscribed}
    after = assign_uniform(left, topics)
    check(left, topics, after)
    if len({spec.topic_ids for spec in left.values()}) == 1:
        for name, assignment in after.items():
            for topic_id, partitions in first[name].items():
                if topic_id in subscribed:
                    assert partitions <= assignment.get(topic_id, frozenset()), "a member that stays loses nothing"


@given(groups())
def test_the_order_in_which_members_are_known_does_not_matter(
    group: tuple[dict[str, MemberSpec], dict[uuid.UUID, TopicSpec]],
) -> None:
    specs, topics = group
    for assign in ASSIGNORS.values():
        assert assign(specs, topics) == assign(dict(reversed(specs.items())), topics)


def plainly_uniform(specs: dict[str, MemberSpec], topics: dict[uuid.UUID, TopicSpec]) -> dict[str, Assignment]:
    """What ``uniform`` means for members of different subscriptions, looking at every member for every partition."""
    has = {name: {(t, p) for t, parts in specs[name].owned.items() for p in parts} for name in sorted(specs)}
    readers = {topic: [name for name in has if topic in specs[name].topic_ids] for topic in topics}
    order = sorted(topics, key=lambda topic: (len(readers[topic]), topic))
    for topic in order:
        for partition in range(topics[topic].partition_count):
            if not any((topic, partition) in mine for mine in has.values()):
                racks = dict(enumerate(topics[topic].racks)).get(partition, frozenset())
                taker = min(readers[topic], key=lambda name: (len(has[name]), specs[name].rack_id not in racks))
                has[taker].add((topic, partition))
    moved = True
    while moved:
        moved = False
        for topic in order:
            while givers := [name for name in readers[topic] if any(t == topic for t, _ in has[name])]:
                giver = max(givers, key=lambda name: len(has[name]))
                taker = min(readers[topic], key=lambda name: len(has[name]))
                if len(has[giver]) - len(has[taker]) <= 1:
                    break
                last = max(pair for pair in has[giver] if pair[0] == topic)
                has[giver].remove(last)
                has[taker].add(last)
                moved = True
    return {
        name: {topic: frozenset(p for t, p in mine if t == topic) for topic in {t for t, _ in mine}}
        for name, mine in has.items()
    }


@settings(max_examples=100)
@given(groups(), st.randoms(use_true_random=False))
def test_uniform_over_different_subscriptions_is_the_plain_one(
    group: tuple[dict[str, MemberSpec], dict[uuid.UUID, TopicSpec]], rng: random.Random
) -> None:
    specs, topics = group
    racks = ["x", "y"]
    for topic, spec in topics.items():
        replicas = [
            frozenset(rng.sample(racks, rng.randint(0, 2))) for _ in range(rng.randint(0, spec.partition_count))
        ]
        topics[topic] = TopicSpec(spec.partition_count, replicas)
    owned: dict[str, dict[uuid.UUID, set[int]]] = {name: {} for name in specs}
    for topic, spec in topics.items():
        readers = sorted(name for name in specs if topic in specs[name].topic_ids)
        for partition in range(spec.partition_count):
            if rng.random() < 0.6:
                owned[rng.choice(readers)].setdefault(topic, set()).add(partition)
    for name, spec_of in specs.items():
        had = {topic: frozenset(partitions) for topic, partitions in owned[name].items()}
        specs[name] = MemberSpec(spec_of.topic_ids, had, rack_id=rng.choice([None, "x", "y", "of no replica"]))
    if len({spec.topic_ids for spec in specs.values()}) > 1:
        assert assign_uniform(specs, topics) == plainly_uniform(specs, topics)


def test_uniform_takes_from_a_member_only_what_a_new_one_needs() -> None:
    topics = {A: TopicSpec(6), B: TopicSpec(6)}
    everything: Assignment = {A: frozenset(range(6)), B: frozenset(range(6))}
    after = assign_uniform(members(("m1", {A, B}), ("m2", {A, B}), m1=everything), topics)
    assert [count(after["m1"]), count(after["m2"])] == [6, 6]
    assert after["m1"] == {A: frozenset({0, 1, 2}), B: frozenset({0, 1, 2})}, "evenly of both topics"


def test_uniform_gives_the_longer_share_to_who_has_it() -> None:
    topics = {A: TopicSpec(5)}
    owned: dict[str, Assignment] = {"m1": {A: frozenset({0, 1})}, "m2": {A: frozenset({2, 3, 4})}}
    after = assign_uniform(members(("m1", {A}), ("m2", {A}), **owned), topics)
    assert after == owned


def test_uniform_balances_members_of_different_subscriptions() -> None:
    topics = {A: TopicSpec(4), B: TopicSpec(2)}
    after = assign_uniform(members(("m1", {A, B}), ("m2", {A}), ("m3", {B})), topics)
    assert sorted(map(count, after.values())) == [2, 2, 2]


def test_uniform_prefers_a_member_in_a_rack_of_a_replica_but_balance_more() -> None:
    racks = (frozenset({"x"}), frozenset({"x"}), frozenset({"y"}), frozenset({"y"}))
    specs = {
        "m1": MemberSpec(frozenset({A}), {}, rack_id="y"),
        "m2": MemberSpec(frozenset({A}), {}, rack_id="x"),
    }
    assert assign_uniform(specs, {A: TopicSpec(4, racks)}) == {
        "m1": {A: frozenset({2, 3})},
        "m2": {A: frozenset({0, 1})},
    }
    far = {name: MemberSpec(spec.topic_ids, {}, rack_id="z") for name, spec in specs.items()}
    assert sorted(map(count, assign_uniform(far, {A: TopicSpec(4, racks)}).values())) == [2, 2]


def test_range_gives_runs_and_the_same_numbers_of_all_topics_to_a_member() -> None:
    after = assign_range(members(("m1", {A, B}), ("m2", {A, B})), {A: TopicSpec(5), B: TopicSpec(5)})
    assert after["m1"] == {A: frozenset({0, 1, 2}), B: frozenset({0, 1, 2})}
    assert after["m2"] == {A: frozenset({3, 4}), B: frozenset({3, 4})}


def test_range_puts_static_members_first_by_instance() -> None:
    specs = {
        "m1": MemberSpec(frozenset({A}), {}),
        "m2": MemberSpec(frozenset({A}), {}, instance_id="i2"),
        "m3": MemberSpec(frozenset({A}), {}, instance_id="i1"),
    }
    after = assign_range(specs, {A: TopicSpec(3)})
    assert after == {"m3": {A: frozenset({0})}, "m2": {A: frozenset({1})}, "m1": {A: frozenset({2})}}


def test_a_member_that_subscribes_to_nothing_gets_nothing() -> None:
    for assign in ASSIGNORS.values():
        assert assign(members(("m1", {A}), ("m2", set())), {A: TopicSpec(2)})["m2"] == {}
        assert assign({}, {}) == {}
