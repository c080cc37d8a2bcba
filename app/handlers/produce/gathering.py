"""Produce requests of the usual kind, together or alone: requests that came together are appended by one write for each log.

To write 16 KiB to the page cache costs twice as much alone as among many: the kernel makes larger pages for a longer write, and
each call has a price of its own. So requests of the fast path are gathered: the requests that one client has sent together, or the
requests of all clients in one turn of the loop if several have sent some. Until then a request counts as not arrived: it has no
offset, and no reader sees it. Then the requests of each log are appended in the order in which they came. If a request is refused,
it and the later requests of its log are served one by one, as if they came then. Answers leave in the order of each client's
requests.

A turn ends when all sockets that were ready have been read. Until then the bytes of gathered requests lie in receive buffers that
are set aside. A client that is alone never waits for the end of a turn: its request is a run of one, which is appended at once.
"""

from __future__ import annotations

from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from app.core.errors import FirnError, ProtocolError
from app.handlers.clients.admission import continues
from app.handlers.clients.produce_shape import GENERAL, PREFIX_START
from app.handlers.produce.committing import wait_for_commit
from app.handlers.produce.produce import serve_produce, shaped_records, tell_served
from app.records.batch import TRANSACTIONAL, HeaderFields

if TYPE_CHECKING:
    from app.handlers.clients.client import Client, Service
    from app.handlers.clients.produce_shape import ProduceShape
    from app.handlers.policy.callers import Shares
    from app.hot.log import AppendResult, PartitionLog

BASE_OFFSET: Final = Struct(">q")
GATHERED_MAX: Final = 1000
"""With so many requests nothing waits for the end of the turn, which appends all of them in one callback (INV-15)."""
LATER: Final = b""
"""In place of a response that comes later."""
Run: TypeAlias = list[tuple[memoryview, HeaderFields]]
"""Batches for one log."""


class Gathered(NamedTuple):
    """A request that is to be appended."""

    client: Client
    shape: ProduceShape
    shares: Shares | None
    """The quotas that its bytes were taken of."""
    correlation_id: int
    frame: memoryview
    """Without its size."""
    records: memoryview
    fields: HeaderFields


_new_gathered: Final[Callable[[type[Gathered], tuple[Any, ...]], Gathered]] = tuple.__new__
"""Creates a ``Gathered`` at half the cost of calling the class."""


class Gathering:
    """The requests that wait for the end of a turn of the loop, or of a client's call. Belongs to one loop."""

    __slots__ = ("_last_id", "_last_s", "_requests", "_server", "_set_aside", "several")

    def __init__(self, server: Service) -> None:
        self._server = server
        self._requests: list[Gathered] = []
        self._set_aside = 0
        """Clients whose requests wait for the end of this turn."""
        self.several = False
        """Whether more than one client has sent something in the last turn: then it is worth it to wait for the others."""
        self._last_id = 0
        """The id of the last calling client. Not the client itself, which would be kept beyond its end."""
        self._last_s = -1.0

    def serve(
        self,
        client: Client,
        shape: ProduceShape,
        correlation_id: int,
        buffer: bytearray,
        view: memoryview,
        position: int,
        frame_end: int,
        end: int,
    ) -> bytes | None:
        """Serve the request in ``view[position:frame_end]``, which begins like ``shape``, together with others or alone. ``end``:
        of the bytes that the client has sent. ``end_of_call`` must follow before ``view`` has other content.

        Returns: the response; ``LATER`` if it comes later. None if the request has to go the general way, which shows why: nothing
        was appended then, and nothing charged.
        """
        place = shaped_records(shape, buffer, position + PREFIX_START + len(shape.prefix), frame_end)
        if place is None:
            if client.gathered:
                self.flush(client)
            return None
        log = shape.log
        start, stop = place
        records = view[start:stop]
        size = frame_end - position - 4
        context = client.context
        quotas = context.quotas
        shares: Shares | None = None
        if quotas is not None:
            # As ``produced_alike``, which most requests need not call.
            shares, producing = shape.shares, quotas.producing
            ahead = shares.produced.ahead - size
            if (
                ahead >= 0
                and shares.time.left >= 0
                and (producing is shares or (producing is None and shares.terms is quotas.terms))
            ):
                shares.produced.ahead = ahead
                quotas.producing = shares
            else:
                shares = None  # its client may have to wait, so the request goes alone
        if (self.several or client.gathered or end - frame_end >= PREFIX_START) and (
            shares is not None or quotas is None
        ):
            fields = log.check_plain(records)
            if fields is not None:
                frame = view[position + 4 : frame_end]
                self._requests.append(
                    _new_gathered(Gathered, (client, shape, shares, correlation_id, frame, records, fields))
                )
                client.gathered += 1
                return LATER
        if client.gathered:
            if shares is not None:
                shares.produced.ahead += size  # is charged again
            self.flush(client)
            if context.refusal is not None or client.held is not None:
                return None
            return self.serve(client, shape, correlation_id, buffer, view, position, frame_end, end)
        result: AppendResult | None = None
        try:
            if shape.way() is not GENERAL:
                result = log.append_as_leader(records, now_ms=client.now_ms, may_prepare=False)
        except ProtocolError:
            pass  # The batch is refused as it came. Its base offset may be the fault.
        except FirnError:
            # The log may have placed the batch before it met a full disk; the general way is to see the batch as the
            # producer sent it. A batch that must be prepared comes here too.
            BASE_OFFSET.pack_into(buffer, start, 0)
        if result is None:
            if shares is not None:
                shares.produced.ahead += size  # is charged again
            return None
        base_offset, offset_end, log_append_time_ms, duplicate = result
        if not duplicate:
            metrics = self._server.metrics
            metrics.bytes_in.value += stop - start
            metrics.records_in.value += offset_end - base_offset
            if metrics.zones is not None:
                metrics.zones.produced(shape.client_id, stop - start)
        sampler = context.sampler
        if sampler is not None and sampler.take(1):
            tell_served(client, shape, correlation_id)
        throttle_time_ms = 0
        if shares is None and quotas is not None:
            throttle_time_ms = client.rest(quotas.produced_alike(client.caller, shape, size))
        if not throttle_time_ms:
            answer = shape.answer(correlation_id, base_offset, log_append_time_ms, log.log_start_offset)
        else:
            answer = shape.throttled_answer(
                correlation_id, base_offset, log_append_time_ms, log.log_start_offset, throttle_time_ms
            )
        if shape.partition is not None and offset_end > log.high_watermark:
            wait_for_commit(client, shape, correlation_id, offset_end, answer, throttle_time_ms)
            self._server.produce_meter.response_bytes.value += len(answer)
            return LATER
        return answer

    def end_of_call(self, client: Client, view: memoryview) -> None:
        """Called when a client's bytes, which lie in ``view``, are parsed. Appends its requests now, or with those of others."""
        server = self._server
        if client.gathered:
            if (
                self.several
                and client.ending is None
                and len(self._requests) < GATHERED_MAX
                and view is server.scratch
                and server.set_scratch_aside()
            ):
                if not self._set_aside:
                    server.loop.call_soon(self._turn_ends)
                self._set_aside += 1
            else:
                self.flush(client)
        started_s = client.started_s
        if started_s == self._last_s and id(client) != self._last_id:
            self.several = True
        self._last_s, self._last_id = started_s, id(client)

    def _turn_ends(self) -> None:
        self.several = self._set_aside > 1
        self._set_aside = 0
        self.flush()

    def flush(self, caller: Client | None = None) -> None:
        """Append and answer everything that was gathered. ``caller``: whose call this is; its time is charged by that call."""
        requests, self._requests = self._requests, []
        if not requests:
            return
        counts: dict[Client, int] = {}
        for client in [request[0] for request in requests]:
            counts[client] = counts.get(client, 0) + 1
            client.gathered = 0
        server = self._server
        quotas = server.context.quotas
        timed = quotas if quotas is not None and quotas.counts_time and (caller is None or len(counts) > 1) else None
        began_s = timed.now_s() if timed is not None else 0.0
        try:
            self._serve(requests, counts)
        except BaseException:  # a bug: no client may wait for an answer that does not come
            for client in counts:
                client.abort()
            raise
        finally:
            server.take_scratches_back()
        if timed is not None:
            timed.share_out([request.shares for request in requests], timed.now_s() - began_s)
        now_s, meter = server.now_s(), server.produce_meter
        for client, count in counts.items():
            if count:
                meter.observe(now_s - client.started_s, count)
            client.hand_over()

    def _serve(self, requests: list[Gathered], counts: dict[Client, int]) -> None:
        """Append, and put the answers into their places. ``counts``: the requests of each client, from which those are taken off
        that wait for a commit."""
        server = self._server
        context = server.context
        now_ms = context.clock.now_ms()
        zones = server.metrics.zones
        results = self._append(requests, now_ms)
        appended_bytes = appended_records = answered_bytes = 0
        for (client, shape, shares, correlation_id, frame, records, _), result in zip(requests, results, strict=True):
            if result is None:
                if shares is not None:
                    shares.produced.ahead += len(frame)  # is charged again
                if client.closed or client.ending is not None:
                    continue
                client.now_ms = now_ms
                try:
                    parts = serve_produce(client, shape.version, correlation_id, frame)
                except ProtocolError as error:
                    client.fail(f"closing the connection of {client.peer}: {error}")
                    continue
                if parts is not None:
                    client.answer(parts)
                continue
            if not result[3]:
                appended_bytes += len(records)
                appended_records += result[1] - result[0]
                if zones is not None:
                    zones.produced(shape.client_id, len(records))
            if client.closed:
                continue
            answer = shape.answer(correlation_id, result[0], result[2], shape.log.log_start_offset)
            answered_bytes += len(answer)
            if shape.partition is None or result[1] <= shape.log.high_watermark:
                client.answer(answer)
            else:
                wait_for_commit(client, shape, correlation_id, result[1], answer, 0)
                counts[client] -= 1  # its slot counts it
        sampler = context.sampler
        if sampler is not None:
            for (client, shape, _, correlation_id, _, _, _), result in zip(requests, results, strict=True):
                if result is not None and sampler.take(1):  # else it was counted where it was served by itself
                    tell_served(client, shape, correlation_id)
        server.produce_meter.response_bytes.value += answered_bytes
        server.metrics.bytes_in.value += appended_bytes
        server.metrics.records_in.value += appended_records

    def _append(self, requests: list[Gathered], now_ms: int) -> list[AppendResult | None]:
        """Returns: None for each request that has to be served by itself."""
        results: list[AppendResult | None] = [None] * len(requests)
        if self._server.context.refusal is not None:
            return results
        by_log: dict[PartitionLog, tuple[list[int], Run]] = {}
        left: set[PartitionLog] = set()
        checked: ProduceShape | None = None
        for place, (_, shape, _, _, _, records, fields) in enumerate(requests):
            log = shape.log
            if shape is not checked:
                if log in left:
                    continue
                if shape.way() is GENERAL:
                    left.add(log)
                    checked = None
                    continue
                checked = shape
            found = by_log.get(log)
            if found is None:
                by_log[log] = [place], [(records, fields)]
            else:
                found[0].append(place)
                found[1].append((records, fields))
        for log, (places, run) in by_log.items():
            done: list[AppendResult] = []
            try:
                _append_to(log, run, done, now_ms)
            except FirnError:
                # Each of the others is served by itself, and gets an error of its own if it fails too. Until then their bytes are
                # as they were sent.
                for records, _ in run[len(done) :]:
                    BASE_OFFSET.pack_into(records, 0, 0)
            for place, result in zip(places, done, strict=False):
                results[place] = result
        return results


def _append_to(log: PartitionLog, run: Run, done: list[AppendResult], now_ms: int) -> None:
    """Append to one log. ``done`` gets a result for each batch that was appended, which are the first ones.

    Raises: as ``append_as_leader``.
    """
    while len(done) < len(run):
        done += log.append_run(run[len(done) :], now_ms=now_ms)
        if len(done) < len(run):
            records, fields = run[len(done)]
            if fields[5] & TRANSACTIONAL and not continues(log, (fields[9], fields[10])):
                return  # it has ended meanwhile
            done.append(log.append_as_leader(records, now_ms=now_ms))
