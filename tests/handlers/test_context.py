"""The parts of a broker, as handlers get them."""

from __future__ import annotations

from dataclasses import MISSING, fields

from app.core.errors import RequestRejected, StorageFull
from app.core.log_events import Event
from app.handlers.base.context import Context
from tests.handlers.fakes import Bench


def test_the_context_constructs_none_of_its_parts() -> None:
    assert [one.name for one in fields(Context) if one.default_factory is not MISSING or not one.init] == []
    assert not hasattr(Context, "__post_init__")


async def test_producers_are_refused_for_the_first_reason_that_holds_in_the_turn_in_which_it_begins() -> None:
    context = Bench().context
    full = StorageFull("No room.")
    context.drain.begin()
    assert isinstance(context.refusal, RequestRejected)
    context.refuse_for_room(full)
    assert (context.refusal, context.refuses_transactions) == (full, True)
    context.refuse_for_room(None)
    assert (context.refusal, context.refuses_transactions) == (context.drain.refusal, False)
    context.drain.take_back()
    assert context.refusal is None


async def test_begin_and_withdrawal_of_a_drain_are_events() -> None:
    bench = Bench()
    bench.context.drain.begin()
    bench.context.drain.take_back()
    assert [getattr(line, "event", None) for line in bench.lines] == [Event.DRAIN_BEGUN, Event.DRAIN_WITHDRAWN]
