"""Imported by the process that a job's workers are forked from: loads the kernels' machine code once for all of them."""

from __future__ import annotations

import numpy as np

from pyspark_firn import kernels

kernels.scan_batches(np.empty(0, np.uint8), np.empty((0, kernels.BATCH_FIELDS), np.int64))
