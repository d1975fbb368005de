"""A quick benchmark of this machine: appends, scans and point reads, each with its limit.

The limit of a figure is measured in the same run on the same disk: the rate of plain Python, ``os.write``,
``fdatasync`` or ``os.pread`` for the same data. Records are values of 100 bytes in a topic with one partition.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from ..errors import DiskFull
from ..opening import open_store
from ..settings.settings import Settings
from ..store.interface.store import Store
from ..store.interface.topic import Topic
from ..warm.filesystem import sync_data

VALUE_BYTES = 100
_MANY = 1_000
_BATCH_ROWS = 16_384
_WRITE_BYTES = 1 << 20
_PAGE_BYTES = 4096
# The limit of written bytes, so that a fast disk is not filled, and the free space that this needs.
_BYTES_MAX = 256 << 20
_FREE_BYTES_MIN = 8 * _BYTES_MAX
_CLOCK_EVERY = 32


@dataclass(frozen=True, slots=True)
class Figure:
    """One measurement.

    Attributes
    ----------
    per_second
        The rate in `unit`: ``records``, ``bytes`` or ``reads``.
    limit, limit_per_second
        The operation that the figure is compared with, and its rate in the same unit.
    """

    name: str
    unit: str
    per_second: float
    limit: str
    limit_per_second: float

    @property
    def share(self) -> float:
        """The figure as a share of its limit."""
        return self.per_second / self.limit_per_second

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**asdict(self), "share": self.share}


@contextmanager
def scratch(folder: Path) -> Iterator[Path]:
    """Create a directory below `folder`, and remove it with its content at the end, also after an error.

    Raises
    ------
    DiskFull
        The disk has too little free space for a measurement.
    OSError
    """
    free = shutil.disk_usage(folder).free
    if free < _FREE_BYTES_MIN:
        raise DiskFull(f"{folder} has {free >> 20} MiB free; a benchmark needs {_FREE_BYTES_MIN >> 20} MiB")
    with tempfile.TemporaryDirectory(prefix=".tiered-bench-", dir=folder) as directory:
        yield Path(directory)


def measure(folder: Path, seconds: float) -> Iterator[Figure]:
    """Yield each figure when it is measured. The files in `folder` stay for the caller to remove.

    Parameters
    ----------
    seconds
        The approximate duration of all measurements.
    """
    each = seconds / 12
    with open_store(folder / "store", settings=Settings()) as store:
        yield Figure(
            "append", "records", _append(store, each), "a list under a lock, in Python", _bare_loop(each)
        )
        written_bytes = _write(folder, each)
        many = _append_many(store, each)
        yield Figure("append_many", "records", many, "os.write of the values", written_bytes / VALUE_BYTES)
        topic, batches = _append_batch(store, each)
        yield Figure("append_batch (Arrow)", "bytes", batches, "os.write", written_bytes)
        yield Figure(
            "append, sync=True", "records", _append_synced(store, each), "os.write + fdatasync of 1 KiB", _write_synced(folder, each)
        )  # fmt: skip
        topic.roll()
        files = sorted((folder / "store" / "topics" / topic.name / "0").glob("*.log"))
        yield Figure(
            "scan, warm", "bytes", _scan(topic, each), "os.read of the files", _read_files(files, each)
        )
        yield Figure(
            "read of one record", "reads", _point_reads(topic, each), "os.pread of 4 KiB", _read_pages(files, each)
        )  # fmt: skip


def _repeat(step: Callable[[], int], seconds: float, end: Callable[[], object] = lambda: None) -> float:
    """Call `step` for `seconds`, then `end`; return the sum of its results a second."""
    total = 0
    started = time.perf_counter()
    while time.perf_counter() - started < seconds:
        for _ in range(_CLOCK_EVERY):
            total += step()
    end()
    return total / (time.perf_counter() - started)


def _repeat_slowly(
    step: Callable[[], int], seconds: float, total_max: int, end: Callable[[], object]
) -> float:
    """Measure like `_repeat`, but read the clock after each step, and end early when the sum reaches `total_max`."""
    total = 0
    started = time.perf_counter()
    while total < total_max and time.perf_counter() - started < seconds:
        total += step()
    end()
    return total / (time.perf_counter() - started)


# -- appends ---------------------------------------------------------------------------------------


def _append(store: Store, seconds: float) -> float:
    topic, value = store.create_topic("append"), bytes(VALUE_BYTES)

    def step() -> int:
        topic.append(value)
        return 1

    step()
    return _repeat(step, seconds, topic.flush)


def _bare_loop(seconds: float) -> float:
    lock, rows, value = threading.Lock(), [], bytes(VALUE_BYTES)

    def step() -> int:
        with lock:
            rows.append((0, None, value))
        return 1

    return _repeat(step, seconds)


def _append_many(store: Store, seconds: float) -> float:
    topic, values = store.create_topic("append-many"), [bytes(VALUE_BYTES)] * _MANY

    def step() -> int:
        topic.append_many(values)
        return len(values)

    step()
    return _repeat_slowly(step, seconds, _BYTES_MAX // VALUE_BYTES, topic.flush)


def _append_batch(store: Store, seconds: float) -> tuple[Topic, float]:
    topic = store.create_topic("append-batch")
    draw = random.Random(1)  # noqa: S311 (no secret)
    values = [draw.randbytes(VALUE_BYTES) for _ in range(_BATCH_ROWS)]
    table = pa.table({"value": pa.array(values, pa.binary())})

    def step() -> int:
        topic.append_batch(table)
        return _BATCH_ROWS * VALUE_BYTES

    step()
    return topic, _repeat_slowly(step, seconds, _BYTES_MAX, topic.flush)


def _write(folder: Path, seconds: float) -> float:
    payload = os.urandom(_WRITE_BYTES)
    with (folder / "written").open("wb", buffering=0) as file:
        return _repeat_slowly(
            lambda: file.write(payload), seconds, _BYTES_MAX, lambda: sync_data(file.fileno())
        )


def _append_synced(store: Store, seconds: float) -> float:
    topic, value = store.create_topic("append-synced"), bytes(VALUE_BYTES)

    def step() -> int:
        topic.append(value, sync=True)
        return 1

    step()
    return _repeat_slowly(step, seconds, _BYTES_MAX, lambda: None)


def _write_synced(folder: Path, seconds: float) -> float:
    payload = bytes(1024)
    with (folder / "synced").open("wb", buffering=0) as file:

        def step() -> int:
            file.write(payload)
            sync_data(file.fileno())
            return 1

        step()
        return _repeat_slowly(step, seconds, _BYTES_MAX, lambda: None)


# -- reads -----------------------------------------------------------------------------------------


def _scan(topic: Topic, seconds: float) -> float:
    def step() -> int:
        return sum(int(batch.num_rows) for batch in topic.scan().to_batches()) * VALUE_BYTES

    step()
    return _repeat_slowly(step, seconds, 1 << 62, lambda: None)


def _read_files(files: list[Path], seconds: float) -> float:
    buffer = bytearray(_WRITE_BYTES)

    def step() -> int:
        total = 0
        for path in files:
            with path.open("rb", buffering=0) as file:
                while read := file.readinto(buffer):
                    total += read
        return total

    step()
    return _repeat_slowly(step, seconds, 1 << 62, lambda: None)


def _point_reads(topic: Topic, seconds: float) -> float:
    end, draw = topic.offsets()[0].end, random.Random(1)  # noqa: S311 (no secret)

    def step() -> int:
        return sum(1 for _ in topic.read(offset=draw.randrange(end), limit=1))

    step()
    return _repeat_slowly(step, seconds, 1 << 62, lambda: None)


def _read_pages(files: list[Path], seconds: float) -> float:
    path = max(files, key=lambda item: item.stat().st_size)
    pages, draw = max(1, path.stat().st_size // _PAGE_BYTES), random.Random(1)  # noqa: S311 (no secret)
    with path.open("rb", buffering=0) as file:
        number = file.fileno()

        def step() -> int:
            os.pread(number, _PAGE_BYTES, draw.randrange(pages) * _PAGE_BYTES)
            return 1

        return _repeat(step, seconds)
