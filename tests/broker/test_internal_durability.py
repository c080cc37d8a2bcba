"""Committed offsets, transactions and share groups with ``firn.durability=object`` survive the loss of every disk (ADR 0037, J45)."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.broker.test_object_durability import alone, create, led
from tests.support.broker import RunningBroker
