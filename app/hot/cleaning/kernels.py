"""Compaction's inner loops, compiled by numba: one call processes a window of batches, not a batch or a record.

The loops use arrays of the caller. They allocate nothing and raise nothing. If they cannot continue (a compressed batch, a full
buffer, damage), they return a ``Stop`` with the number of the batch at which to continue. Compiled code does not check indexes,
so every length is compared with the remaining bytes before it is used. ``plain.py`` does the same in readable Python, and is
the oracle of the tests.

The map of newest offsets is a hash table with linear probing in one array. A slot has two words: 64 bits of a key's
SipHash-1-3, and then 32 more bits and the newest offset, relative to the first indexed offset. A free slot has only ones. Each
job hashes with a random key, so no producer can choose two keys that count as one.

The slots are in the order of their hashes over the whole array. A key's first slot grows with its hash, and the array has some
extra slots at its end, so nothing wraps around. A search for a missing key therefore ends at the place where the key would be:
after five slots instead of fifty in a table that is nine tenths full. Most searches of a second round are for missing keys.

Tests: ``tests/hot/test_cleaning_engines.py``.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numba import njit

from app.hot.cleaning.engine import EMPTIED_KEPT, RECORDS_DROPPED, TRANSACTION_GONE, Stop
from app.hot.cleaning.intrinsics import (
    copy_bytes,
    crc_word,
    fetch_early,
    has_crc_instruction,
    i32_at,
    i64_at,
    put_i16,
    put_i32,
    put_i64,
    u16_at,
    word_at,
)
from app.records.batch import (
    CODEC_MASK,
    CONTROL,
    CRC_START,
    HAS_DELETE_HORIZON,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    LOG_APPEND_TIME,
    MAGIC_V2,
    TRANSACTIONAL,
)
from app.records.record import RECORD_BYTES_MIN

Array = np.ndarray[Any, Any]

DONE = int(Stop.DONE)
FULL = int(Stop.FULL)
COMPRESSED = int(Stop.COMPRESSED)
NO_ROOM = int(Stop.NO_ROOM)
DAMAGED = int(Stop.DAMAGED)

_OFFSET_AT = 0
_LENGTH_AT = 8
_MAGIC_AT = 16
_CRC_AT = 17
_ATTRIBUTES_AT = 21
_LAST_DELTA_AT = 23
_BASE_TIMESTAMP_AT = 27
_MAX_TIMESTAMP_AT = 35
_PRODUCER_ID_AT = 43
_COUNT_AT = 57

RECORD_GROWTH_BYTES = 11
"""Extra bytes for a record: its timestamp delta may grow from one byte to ten, and its length field too."""

SLOT_WORDS = 2
SPILL_SLOTS = 2048
"""Extra slots after the last place, for keys whose place is taken. The very last slot stays free."""
FREE = 0xFFFF_FFFF_FFFF_FFFF
"""Both words of a free slot. An offset of 32 ones is never stored, so no key looks like a free slot."""

# State of the table, in an int64 array.
KEYS = 0
KEYS_MAX = 1
LATEST = 2
RECORDS_SEEN = 3
RECORDS_KEPT = 4
NOTED_FROM = 5
STATE_WORDS = 6

# A record of a batch whose key was hashed, while its place in the table is fetched from memory: several times as long as all else.
AHEAD = 16
BATCHES_AHEAD = 8
AHEAD_OFFSET = 2
AHEAD_FATE = 3
AHEAD_TIMESTAMP = 4
AHEAD_TOMBSTONE = 5
AHEAD_WORDS = 6
GOES = 0
STAYS = 1
LOOKED_UP = 2

# State of the index of the segment that is written.
BASE = 0
POSITION = 1
SINCE_ENTRY = 2
INTERVAL = 3
NEWEST = 4
NEWEST_OFFSET = 5
NEWEST_NOTED = 6
ENTRIES = 7
TIMES = 8
INDEX_WORDS = 9

# The facts about the records of one batch.
KEPT = 0
FIRST_TIMESTAMP = 1
GREATEST_TIMESTAMP = 2
TOMBSTONES = 3
VERDICT_WORDS = 4

_U0 = np.uint64(0)
_U1 = np.uint64(1)
_U3 = np.uint64(3)
_U7 = np.uint64(7)
_U8 = np.uint64(8)
_U64 = np.uint64(64)
_U7F = np.uint64(0x7F)
_UFF = np.uint64(0xFF)
_UEE = np.uint64(0xEE)
_UDD = np.uint64(0xDD)
_C0 = np.uint64(0x736F6D6570736575)
_C1 = np.uint64(0x646F72616E646F6D)
_C2 = np.uint64(0x6C7967656E657261)
_C3 = np.uint64(0x7465646279746573)
_U32 = np.uint64(32)
_LOW = np.uint64(0xFFFFFFFF)
_OFFSETS_MAX = np.int64(0xFFFFFFFF)


def crc_tables() -> Array:
    """Eight tables of CRC-32C, for eight bytes a step."""
    tables = np.zeros((8, 256), np.uint32)
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        tables[0, byte] = value
    for number in range(1, 8):
        before = tables[number - 1]
        tables[number] = (before >> np.uint32(8)) ^ tables[0][before & np.uint32(0xFF)]
    return tables


@njit(cache=True)
def _crc_by_instruction(data, start, end, tables):
    crc = np.uint64(0xFFFFFFFF)
    at = start
    while at + 8 <= end:
        crc = crc_word(crc, word_at(data, at))
        at += 8
    return _crc_of_rest(data, at, end, tables, np.uint32(crc))


@njit(cache=True)
def _crc_by_tables(data, start, end, tables):
    crc = np.uint32(0xFFFFFFFF)
    at = start
    while at + 8 <= end:
        low = crc ^ (
            np.uint32(data[at])
            | np.uint32(data[at + 1]) << np.uint32(8)
            | np.uint32(data[at + 2]) << np.uint32(16)
            | np.uint32(data[at + 3]) << np.uint32(24)
        )
        crc = (
            tables[7, low & np.uint32(0xFF)]
            ^ tables[6, (low >> np.uint32(8)) & np.uint32(0xFF)]
            ^ tables[5, (low >> np.uint32(16)) & np.uint32(0xFF)]
            ^ tables[4, low >> np.uint32(24)]
            ^ tables[3, data[at + 4]]
            ^ tables[2, data[at + 5]]
            ^ tables[1, data[at + 6]]
            ^ tables[0, data[at + 7]]
        )
        at += 8
    return _crc_of_rest(data, at, end, tables, crc)


@njit(cache=True)
def _crc_of_rest(data, at, end, tables, crc):
    while at < end:
        crc = (crc >> np.uint32(8)) ^ tables[0, (crc ^ np.uint32(data[at])) & np.uint32(0xFF)]
        at += 1
    return crc ^ np.uint32(0xFFFFFFFF)


@njit(cache=True)
def _word_by_bytes(data, at):
    word = _U0
    for number in range(8):
        word |= np.uint64(data[at + number]) << np.uint64(8 * number)
    return word


_little_endian_word = word_at if sys.byteorder == "little" else _word_by_bytes
_crc = _crc_by_instruction if has_crc_instruction() else _crc_by_tables


@njit(cache=True)
def _varint(data, at, end):
    """(value, position after it). The position is -1 if the bytes end early or the number is too long."""
    raw = _U0
    shift = _U0
    while at < end and shift < _U64:
        byte = np.uint64(data[at])
        at += 1
        raw |= (byte & _U7F) << shift
        if byte <= _U7F:
            return np.int64(raw >> _U1) ^ -np.int64(raw & _U1), at
        shift += _U7
    return np.int64(0), np.int64(-1)


@njit(cache=True)
def _varint_bytes(value):
    raw = np.uint64(value << 1) ^ np.uint64(value >> 63)
    size = 1
    while raw > _U7F:
        raw >>= _U7
        size += 1
    return size


@njit(cache=True)
def _put_varint(data, at, value):
    raw = np.uint64(value << 1) ^ np.uint64(value >> 63)
    while raw > _U7F:
        data[at] = np.uint8(raw & _U7F) | np.uint8(0x80)
        raw >>= _U7
        at += 1
    data[at] = np.uint8(raw)
    return at + 1


# --- the table ------------------------------------------------------------------------------------------------------


@njit(cache=True, inline="always")
def _rotate(value, count):
    return (value << np.uint64(count)) | (value >> np.uint64(64 - count))


@njit(cache=True, inline="always")
def _round(v0, v1, v2, v3):
    v0 += v1
    v1 = _rotate(v1, 13) ^ v0
    v0 = _rotate(v0, 32)
    v2 += v3
    v3 = _rotate(v3, 16) ^ v2
    v0 += v3
    v3 = _rotate(v3, 21) ^ v0
    v2 += v1
    v1 = _rotate(v1, 17) ^ v2
    v2 = _rotate(v2, 32)
    return v0, v1, v2, v3


@njit(cache=True)
def siphash(data, start, end, key0, key1):
    """SipHash-1-3 with a result of 128 bits, as two words."""
    v0 = key0 ^ _C0
    v1 = key1 ^ _C1 ^ _UEE
    v2 = key0 ^ _C2
    v3 = key1 ^ _C3
    at = start
    while at + 8 <= end:
        word = _little_endian_word(data, at)
        v3 ^= word
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
        v0 ^= word
        at += 8
    word = np.uint64((end - start) & 0xFF) << np.uint64(56)
    for number in range(end - at):
        word |= np.uint64(data[at + number]) << np.uint64(8 * number)
    v3 ^= word
    v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    v0 ^= word
    v2 ^= _UEE
    for _ in range(3):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    first = v0 ^ v1 ^ v2 ^ v3
    v1 ^= _UDD
    for _ in range(3):
        v0, v1, v2, v3 = _round(v0, v1, v2, v3)
    return first, v0 ^ v1 ^ v2 ^ v3


@njit(cache=True)
def _place_of(slots, first):
    """The slot where the search for a key begins. It grows with the key's hash."""
    places = np.uint64(slots.shape[0] // SLOT_WORDS - SPILL_SLOTS)
    # Multiplying instead of dividing: the upper half of first's upper 32 bits times the count.
    return np.int64(((first >> _U32) * places) >> _U32) * SLOT_WORDS


@njit(cache=True)
def _slot_of(slots, first, second):
    """The slot of the key with this hash, or the slot before which it would be inserted; and whether the key is there."""
    at = _place_of(slots, first)
    while slots[at] < first:
        at += SLOT_WORDS
    while slots[at] == first and slots[at + 1] & _LOW != _LOW:
        if (slots[at + 1] ^ second) >> _U32 == _U0:
            return at, True
        at += SLOT_WORDS
    return at, False


@njit(cache=True)
def _insert(slots, at, first, second, noted):
    """Insert a key at slot ``at``, and move later keys. False if there is no free slot up to the end of the array."""
    free = at
    while slots[free + 1] & _LOW != _LOW:
        free += SLOT_WORDS
    if free == slots.shape[0] - SLOT_WORDS:
        return False
    while free > at:
        slots[free] = slots[free - SLOT_WORDS]
        slots[free + 1] = slots[free + 1 - SLOT_WORDS]
        free -= SLOT_WORDS
    slots[at] = first
    slots[at + 1] = (second & ~_LOW) | noted
    return True


@njit(cache=True)
def _hash_ahead(data, start, end, slots, keys, ahead, place):
    """Hash a key that is needed some records later, and prefetch its slot."""
    first, second = siphash(data, start, end, keys[0], keys[1])
    ahead[place] = np.int64(first)
    ahead[place + 1] = np.int64(second)
    fetch_early(slots, _place_of(slots, first))


@njit(cache=True)
def _fetch_ahead(window, positions, number, count, slots, keys):
    """Prefetch the slots of a later batch's keys, if it has too few records to look ahead within the batch. Decides nothing."""
    number += BATCHES_AHEAD
    if number >= count:
        return
    at = positions[number]
    end = at + i32_at(window, at + _LENGTH_AT) + LENGTH_PREFIX_BYTES
    records = i32_at(window, at + _COUNT_AT)
    if records > AHEAD // 2 or window[at + _ATTRIBUTES_AT + 1] & CODEC_MASK:
        return
    at += HEADER_BYTES
    for _ in range(records):
        length, at = _varint(window, at, end)
        if at < 0 or length < 6 or length > end - at:
            return
        record_end = at + length
        _, at = _varint(window, at + 1, record_end)
        if at < 0:
            return
        _, at = _varint(window, at, record_end)
        if at < 0:
            return
        key_length, at = _varint(window, at, record_end)
        if at < 0 or key_length > record_end - at:
            return
        if key_length >= 0:
            first, _ = siphash(window, at, at + key_length, keys[0], keys[1])
            fetch_early(slots, _place_of(slots, first))
        at = record_end


@njit(cache=True)
def _note(slots, state, first, second, offset):
    """Store a record's offset for the key with this hash. Returns: whether the map had a free slot."""
    if offset - state[NOTED_FROM] >= _OFFSETS_MAX:
        state[LATEST] = offset - 1
        return False
    noted = np.uint64(offset - state[NOTED_FROM])
    slot, known = _slot_of(slots, first, second)
    if known:
        slots[slot + 1] = (slots[slot + 1] & ~_LOW) | noted
    elif state[KEYS] >= state[KEYS_MAX] or not _insert(slots, slot, first, second, noted):
        return False
    else:
        state[KEYS] += 1
    state[LATEST] = offset
    return True


@njit(cache=True)
def index_records(data, at, end, base_offset, count, last_delta, start_offset, slots, keys, state, ahead):
    """Store the offsets of one batch's records, which are uncompressed in ``data[at:end]``. Returns: a ``Stop``."""
    before = np.int64(-1)
    lag = min(count, AHEAD)
    for number in range(count + lag):
        if number >= lag:
            place = ((number - lag) & (AHEAD - 1)) * AHEAD_WORDS
            if ahead[place + AHEAD_FATE] == LOOKED_UP and not _note(
                slots, state, np.uint64(ahead[place]), np.uint64(ahead[place + 1]), ahead[place + AHEAD_OFFSET]
            ):
                return FULL
        if number < count:
            length, at = _varint(data, at, end)
            if at < 0 or length < 6 or length > end - at:
                return DAMAGED
            record_end = at + length
            _, at = _varint(data, at + 1, record_end)
            if at < 0:
                return DAMAGED
            delta, at = _varint(data, at, record_end)
            if at < 0 or delta <= before or delta > last_delta:
                return DAMAGED
            before = delta
            key_length, at = _varint(data, at, record_end)
            if at < 0 or key_length < -1 or key_length > record_end - at:
                return DAMAGED
            place = (number & (AHEAD - 1)) * AHEAD_WORDS
            ahead[place + AHEAD_OFFSET] = base_offset + delta
            if key_length >= 0 and base_offset + delta >= start_offset:
                ahead[place + AHEAD_FATE] = LOOKED_UP
                _hash_ahead(data, at, at + key_length, slots, keys, ahead, place)
            else:
                ahead[place + AHEAD_FATE] = GOES
            at = record_end
    if at != end:
        return DAMAGED
    return DONE


@njit(cache=True)
def scan(window, length, next_offset, end_offset, tables, positions, marked):
    """Find and check the whole batches of a window.

    Returns: (number of batches, their bytes, number of entries in ``marked``, end of the last batch, stop). ``marked`` has the
    numbers of the batches that belong to transactions or are control batches.
    """
    at = np.int64(0)
    count = 0
    listed = 0
    while at + HEADER_BYTES <= length and count < positions.shape[0]:
        batch_length = i32_at(window, at + _LENGTH_AT)
        size = batch_length + LENGTH_PREFIX_BYTES
        if size < HEADER_BYTES or window[at + _MAGIC_AT] != MAGIC_V2:
            return count, at, listed, next_offset, DAMAGED
        if at + size > length:
            break
        crc = np.uint32(i32_at(window, at + _CRC_AT) & 0xFFFFFFFF)
        if _crc(window, at + CRC_START, at + size, tables) != crc:
            return count, at, listed, next_offset, DAMAGED
        records = i32_at(window, at + _COUNT_AT)
        last_delta = i32_at(window, at + _LAST_DELTA_AT)
        attributes = u16_at(window, at + _ATTRIBUTES_AT)
        codec = attributes & CODEC_MASK
        base_offset = i64_at(window, at)
        if base_offset < next_offset or base_offset + last_delta >= end_offset:
            return count, at, listed, next_offset, DAMAGED
        if records < 0 or last_delta < 0 or records > last_delta + 1 or codec > 4:
            return count, at, listed, next_offset, DAMAGED
        if not codec and records * RECORD_BYTES_MIN > size - HEADER_BYTES:
            return count, at, listed, next_offset, DAMAGED
        if attributes & (TRANSACTIONAL | CONTROL):
            marked[listed] = count
            listed += 1
        next_offset = base_offset + last_delta + 1
        positions[count] = at
        count += 1
        at += size
    return count, at, listed, next_offset, DONE


@njit(cache=True)
def index_window(window, positions, number, count, skipped, start_offset, slots, keys, state, ahead):
    """``index_records`` for batches ``[number, count)`` that are not ``skipped``. Returns: (next number, stop)."""
    while number < count:
        _fetch_ahead(window, positions, number, count, slots, keys)
        at = positions[number]
        size = i32_at(window, at + _LENGTH_AT) + LENGTH_PREFIX_BYTES
        base_offset = i64_at(window, at)
        last_delta = i32_at(window, at + _LAST_DELTA_AT)
        last_offset = base_offset + last_delta
        if not skipped[number] and last_offset >= start_offset:
            records = i32_at(window, at + _COUNT_AT)
            if u16_at(window, at + _ATTRIBUTES_AT) & CODEC_MASK and records:
                return number, COMPRESSED
            stop = index_records(
                window,
                at + HEADER_BYTES,
                at + size,
                base_offset,
                records,
                last_delta,
                start_offset,
                slots,
                keys,
                state,
                ahead,
            )
            if stop != DONE:
                return number, stop
        if last_offset >= start_offset:
            state[LATEST] = max(state[LATEST], last_offset)
        number += 1
    return number, DONE


# --- filtering ------------------------------------------------------------------------------------------------------


@njit(cache=True)
def judge_records(
    data,
    at,
    end,
    base_offset,
    count,
    last_delta,
    base_timestamp,
    append_time,
    tombstones_go,
    keep_all,
    slots,
    keys,
    state,
    ahead,
    kept,
    verdict,
):
    """Decide which records of one batch stay: ``kept`` has a byte for each record, and ``verdict`` the sum. Returns: a ``Stop``.

    ``append_time``: the timestamp of all its records; -1 if each record has its own.
    """
    before = np.int64(-1)
    verdict[KEPT] = 0
    verdict[FIRST_TIMESTAMP] = -1
    verdict[GREATEST_TIMESTAMP] = -1
    verdict[TOMBSTONES] = 0
    lag = min(count, AHEAD)
    for number in range(count + lag):
        if number >= lag:
            place = ((number - lag) & (AHEAD - 1)) * AHEAD_WORDS
            stays = ahead[place + AHEAD_FATE] == STAYS
            if ahead[place + AHEAD_FATE] == LOOKED_UP:
                slot, known = _slot_of(slots, np.uint64(ahead[place]), np.uint64(ahead[place + 1]))
                stays = not known or ahead[place + AHEAD_OFFSET] >= state[NOTED_FROM] + np.int64(slots[slot + 1] & _LOW)
            kept[number - lag] = stays
            if stays:
                if verdict[KEPT] == 0:
                    verdict[FIRST_TIMESTAMP] = ahead[place + AHEAD_TIMESTAMP]
                verdict[KEPT] += 1
                verdict[GREATEST_TIMESTAMP] = max(verdict[GREATEST_TIMESTAMP], ahead[place + AHEAD_TIMESTAMP])
                verdict[TOMBSTONES] += ahead[place + AHEAD_TOMBSTONE]
        if number < count:
            length, at = _varint(data, at, end)
            if at < 0 or length < 6 or length > end - at:
                return DAMAGED
            record_end = at + length
            time_delta, at = _varint(data, at + 1, record_end)
            if at < 0:
                return DAMAGED
            delta, at = _varint(data, at, record_end)
            if at < 0 or delta <= before or delta > last_delta:
                return DAMAGED
            before = delta
            key_length, at = _varint(data, at, record_end)
            if at < 0 or key_length < -1 or key_length > record_end - at:
                return DAMAGED
            key_at = at
            value_length, value_at = _varint(data, at + max(key_length, 0), record_end)
            if value_at < 0 or value_length < -1 or value_length > record_end - value_at:
                return DAMAGED
            place = (number & (AHEAD - 1)) * AHEAD_WORDS
            ahead[place + AHEAD_OFFSET] = base_offset + delta
            ahead[place + AHEAD_TIMESTAMP] = append_time if append_time >= 0 else base_timestamp + time_delta
            ahead[place + AHEAD_TOMBSTONE] = np.int64(value_length < 0)
            if keep_all or base_offset + delta > state[LATEST]:
                ahead[place + AHEAD_FATE] = STAYS
            elif key_length < 0 or (value_length < 0 and tombstones_go):
                ahead[place + AHEAD_FATE] = GOES
            else:
                ahead[place + AHEAD_FATE] = LOOKED_UP
                _hash_ahead(data, key_at, key_at + key_length, slots, keys, ahead, place)
            at = record_end
    if at != end:
        return DAMAGED
    state[RECORDS_SEEN] += count
    state[RECORDS_KEPT] += verdict[KEPT]
    return DONE


@njit(cache=True)
def copy_records(data, at, end, count, old_base_timestamp, append_time, new_base_timestamp, kept, out, to):
    """Write the kept records of a batch to ``out`` from ``to`` on, relative to a new base timestamp. Returns: the end."""
    for number in range(count):
        length, at = _varint(data, at, end)
        record_end = at + length
        if kept[number]:
            time_delta, rest_at = _varint(data, at + 1, record_end)
            timestamp = append_time if append_time >= 0 else old_base_timestamp + time_delta
            new_delta = timestamp - new_base_timestamp
            rest = record_end - rest_at
            to = _put_varint(out, to, 1 + _varint_bytes(new_delta) + rest)
            out[to] = data[at]
            to = _put_varint(out, to + 1, new_delta)
            copy_bytes(out, to, data, rest_at, rest)
            to += rest
        at = record_end
    return to


@njit(cache=True)
def _contains(sorted_offsets, offset):
    low, high = 0, sorted_offsets.shape[0]
    while low < high:
        middle = (low + high) // 2
        if sorted_offsets[middle] < offset:
            low = middle + 1
        else:
            high = middle
    return low < sorted_offsets.shape[0] and sorted_offsets[low] == offset


@njit(cache=True)
def note_batch(out, start, index, offsets, places, times, time_offsets):
    """Add a batch that was written to ``out[start:]`` to the segment's indexes, as an append does."""
    size = i32_at(out, start + _LENGTH_AT) + LENGTH_PREFIX_BYTES
    last_offset = i64_at(out, start) + i32_at(out, start + _LAST_DELTA_AT)
    newest = i64_at(out, start + _MAX_TIMESTAMP_AT)
    if newest > index[NEWEST] and i32_at(out, start + _COUNT_AT) > 0:
        index[NEWEST] = newest
        index[NEWEST_OFFSET] = last_offset
    if index[SINCE_ENTRY] > index[INTERVAL]:
        entry = index[ENTRIES]
        offsets[entry] = last_offset - index[BASE]
        places[entry] = index[POSITION]
        index[ENTRIES] = entry + 1
        if index[NEWEST] > index[NEWEST_NOTED]:
            times[index[TIMES]] = index[NEWEST]
            time_offsets[index[TIMES]] = index[NEWEST_OFFSET] - index[BASE]
            index[TIMES] += 1
            index[NEWEST_NOTED] = index[NEWEST]
        index[SINCE_ENTRY] = 0
    index[SINCE_ENTRY] += size
    index[POSITION] += size


@njit(cache=True)
def filter_window(
    window,
    positions,
    number,
    count,
    actions,
    producer_ends,
    now_ms,
    new_horizon_ms,
    slots,
    keys,
    state,
    ahead,
    kept,
    verdict,
    tables,
    out,
    to,
    index,
    offsets,
    places,
    times,
    time_offsets,
):
    """Write the remaining parts of batches ``[number, count)`` to ``out`` from ``to`` on. Returns: (next number, end, stop)."""
    while number < count:
        _fetch_ahead(window, positions, number, count, slots, keys)
        at = positions[number]
        size = i32_at(window, at + _LENGTH_AT) + LENGTH_PREFIX_BYTES
        records = i32_at(window, at + _COUNT_AT)
        if to + size + records * RECORD_GROWTH_BYTES > out.shape[0]:
            return number, to, NO_ROOM
        if records > kept.shape[0]:
            return number, to, NO_ROOM
        attributes = u16_at(window, at + _ATTRIBUTES_AT)
        base_offset = i64_at(window, at)
        last_delta = i32_at(window, at + _LAST_DELTA_AT)
        base_timestamp = i64_at(window, at + _BASE_TIMESTAMP_AT)
        action = actions[number]
        verdict[KEPT] = 0
        verdict[TOMBSTONES] = 0
        append_time = np.int64(-1)
        if attributes & LOG_APPEND_TIME:
            append_time = i64_at(window, at + _MAX_TIMESTAMP_AT)
        if action & RECORDS_DROPPED:
            state[RECORDS_SEEN] += records
        elif records:
            if attributes & CODEC_MASK:
                return number, to, COMPRESSED
            stop = judge_records(
                window,
                at + HEADER_BYTES,
                at + size,
                base_offset,
                records,
                last_delta,
                base_timestamp,
                append_time,
                np.int64(attributes & HAS_DELETE_HORIZON != 0 and base_timestamp <= now_ms),
                np.int64(attributes & CONTROL != 0),
                slots,
                keys,
                state,
                ahead,
                kept,
                verdict,
            )
            if stop != DONE:
                return number, to, stop
        if verdict[KEPT]:
            sets_horizon = (verdict[TOMBSTONES] > 0 or action & TRANSACTION_GONE) and not (
                attributes & HAS_DELETE_HORIZON
            )
            if verdict[KEPT] == records and not sets_horizon:
                copy_bytes(out, to, window, at, size)
                end = to + size
            else:
                copy_bytes(out, to, window, at, HEADER_BYTES)
                if sets_horizon:
                    new_base = np.int64(new_horizon_ms)
                    attributes |= HAS_DELETE_HORIZON
                elif attributes & HAS_DELETE_HORIZON:
                    new_base = base_timestamp
                else:
                    new_base = verdict[FIRST_TIMESTAMP]
                end = copy_records(
                    window,
                    at + HEADER_BYTES,
                    at + size,
                    records,
                    base_timestamp,
                    append_time,
                    new_base,
                    kept,
                    out,
                    to + HEADER_BYTES,
                )
                greatest = append_time if append_time >= 0 else verdict[GREATEST_TIMESTAMP]
                put_i32(out, to + _LENGTH_AT, end - to - LENGTH_PREFIX_BYTES)
                put_i16(out, to + _ATTRIBUTES_AT, attributes)
                put_i64(out, to + _BASE_TIMESTAMP_AT, new_base)
                put_i64(out, to + _MAX_TIMESTAMP_AT, greatest)
                put_i32(out, to + _COUNT_AT, verdict[KEPT])
                put_i32(out, to + _CRC_AT, np.int64(_crc(out, to + CRC_START, end, tables)))
            note_batch(out, to, index, offsets, places, times, time_offsets)
            to = end
        elif action & EMPTIED_KEPT or (
            i64_at(window, at + _PRODUCER_ID_AT) >= 0 and _contains(producer_ends, base_offset + last_delta)
        ):
            copy_bytes(out, to, window, at, HEADER_BYTES)
            end = to + HEADER_BYTES
            put_i32(out, to + _LENGTH_AT, HEADER_BYTES - LENGTH_PREFIX_BYTES)
            put_i16(out, to + _ATTRIBUTES_AT, attributes & ~(CODEC_MASK | HAS_DELETE_HORIZON))
            put_i64(out, to + _BASE_TIMESTAMP_AT, np.int64(-1))
            put_i32(out, to + _COUNT_AT, 0)
            put_i32(out, to + _CRC_AT, np.int64(_crc(out, to + CRC_START, end, tables)))
            note_batch(out, to, index, offsets, places, times, time_offsets)
            to = end
        number += 1
    return number, to, DONE
