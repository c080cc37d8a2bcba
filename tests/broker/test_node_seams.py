"""The surroundings of a node whose caller gives only the required ones."""

from __future__ import annotations

from typing import Any

from app.broker.composing.node_seams import NodeSeams
from app.core.loop_time import loop_time_s


def test_a_node_that_names_nothing_more_is_alone_and_creates_clusters_of_one_broker() -> None:
    nothing: Any = None
    around = NodeSeams(
        clock=nothing, rng=nothing, pool=nothing, fs=nothing, store=nothing, work=nothing, log_line=nothing
    )
    assert around.new_level == 0
    assert (around.new_link, around.places, around.start_pulses, around.boot_id) == (None, None, None, "")
    assert around.descriptors_max == 1024, "the limit of a process that nothing has raised"
    assert around.boot_s is around.elapsed_s is loop_time_s
