"""What record batches cost on their way from a Python process to Spark: TCP on loopback, which it uses, or Unix sockets.

    python -m loadtests.micro_spark_sockets [--batches 240] [--rounds 3]

A process writes record batches of 4 MiB as PySpark does, through a buffered file of 64 KiB; another reads them in pieces of 64 KiB
(Spark's ``spark.buffer.size``) or of 1 MiB. CPU seconds per GB of either, medians of rounds in turns. The reader is Python in the
place of Java, so that nothing but the kernel's work is compared.
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import struct
import time

import numpy as np
import pyarrow as pa

VALUES, VALUE_BYTES = 4096, 1000
WRITE_BUFFER_BYTES = 64 << 10


def record_batch() -> pa.RecordBatch:
    ends = np.arange(VALUES + 1, dtype=np.int32) * VALUE_BYTES
    values = np.zeros(VALUES * VALUE_BYTES, np.uint8)
    column = pa.Array.from_buffers(pa.binary(), VALUES, [None, pa.py_buffer(ends), pa.py_buffer(values)])
    return pa.RecordBatch.from_arrays([column], ["value"])


def connected(kind: str) -> tuple[socket.socket, socket.socket]:
    if kind == "Unix":
        return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    with socket.create_server(("127.0.0.1", 0)) as server:
        writer = socket.create_connection(server.getsockname())
        reader, _ = server.accept()
        return writer, reader


def drain(reader: socket.socket, piece_bytes: int) -> float:
    """CPU seconds to read to the end."""
    buffer = bytearray(piece_bytes)
    started = time.process_time()
    while reader.recv_into(buffer):
        pass
    return time.process_time() - started


def send(writer: socket.socket, batch: pa.RecordBatch, count: int) -> float:
    """CPU seconds to write so many batches."""
    started = time.process_time()
    file = os.fdopen(os.dup(writer.fileno()), "wb", WRITE_BUFFER_BYTES)
    with file, pa.RecordBatchStreamWriter(file, batch.schema) as stream:
        for _ in range(count):
            stream.write_batch(batch)
    writer.shutdown(socket.SHUT_WR)
    return time.process_time() - started


def measure(kind: str, piece_bytes: int, batches: int) -> tuple[float, float]:
    """CPU seconds per GB of writer and reader."""
    writer, reader = connected(kind)
    answer, asked = os.pipe()
    child = os.fork()
    if child == 0:
        writer.close()
        os.write(asked, struct.pack("d", drain(reader, piece_bytes)))
        os._exit(0)
    reader.close()
    sent = send(writer, record_batch(), batches)
    (read,) = struct.unpack("d", os.read(answer, 8))
    os.waitpid(child, 0)
    writer.close()
    os.close(answer)
    os.close(asked)
    gigabytes = batches * VALUES * VALUE_BYTES / 1e9
    return sent / gigabytes, read / gigabytes


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=240)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    cases = [(kind, piece_kib) for piece_kib in (64, 1024) for kind in ("TCP", "Unix")]
    found: dict[tuple[str, int], list[tuple[float, float]]] = {case: [] for case in cases}
    for _ in range(arguments.rounds):
        for kind, piece_kib in cases:
            found[kind, piece_kib].append(measure(kind, piece_kib << 10, arguments.batches))
    print("CPU s per GB              writer  reader")
    for (kind, piece_kib), rounds in found.items():
        sent, read = (statistics.median(figures) for figures in zip(*rounds, strict=True))
        print(f"{kind:<5} in pieces of {piece_kib:>4} KiB  {sent:6.2f}  {read:6.2f}")
