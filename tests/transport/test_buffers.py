"""Pooled buffers: they are used again, and unused ones are part of the memory that an operator has set."""

from __future__ import annotations

from app.transport.buffers import FREE_BYTES_MAX, BufferPool, free_bytes_max
from tests.handlers.fakes import Bench

MIB = 1 << 20


def test_a_used_buffer_is_taken_again() -> None:
    pool = BufferPool()
    buffer = pool.take(40_000)
    pool.give_back(buffer)
    assert pool.free_bytes == 64 * 1024
    assert pool.take(50_000) is buffer
    assert pool.free_bytes == 0


def test_unused_buffers_take_a_quarter_of_the_memory_of_arriving_frames_at_most() -> None:
    assert free_bytes_max(256 * MIB) == free_bytes_max(-1) == free_bytes_max(1 << 40) == FREE_BYTES_MAX
    assert free_bytes_max(32 * MIB) == 8 * MIB


def test_a_server_with_little_memory_for_frames_keeps_no_long_buffer() -> None:
    server = Bench(queued_max_request_bytes=32 * MIB).server
    server.buffers.give_back(server.buffers.take(20 * MIB))
    assert server.buffers.free_bytes == 0
    for buffer in [server.buffers.take(MIB) for _ in range(20)]:
        server.buffers.give_back(buffer)
    assert server.buffers.free_bytes == 8 * MIB
