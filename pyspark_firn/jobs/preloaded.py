"""Imported by the process that a job's workers are forked from: loads the kernels' machine code once for all of them."""

from __future__ import annotations

from pyspark_firn import decoding  # noqa: F401 - what every worker imports
from pyspark_firn.machine_code import load_kernels

load_kernels()
