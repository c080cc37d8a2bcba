"""Imported by the process that a job's workers are forked from: loads the kernels' machine code once for all of them.

It outlives a killed job for a moment, and removes the files that the job could not remove.
"""

from __future__ import annotations

import atexit
import os
import shutil

from pyspark_firn import decoding  # noqa: F401 - every worker imports it
from pyspark_firn.jobs.running import FOLDER_VARIABLE
from pyspark_firn.machine_code import load_kernels

if FOLDER_VARIABLE in os.environ:
    atexit.register(shutil.rmtree, os.environ[FOLDER_VARIABLE], ignore_errors=True)
load_kernels()
