"""A disk that is full while other processes read and tier: of refused appends, nobody has seen anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiered
from tests.crash.beside import Beside, settings_of
from tests.crash.small_disk import SmallDisk
from tests.support.tally import tally
from tiered.engine.host import Host
from tiered.warm.filesystem import OsFileSystem

PIECE = 150_000
ROWS = 1000


class CreepingDisk(OsFileSystem):
    """Writes large things piece by piece, and may have no room ahead to ask for, as on macOS or a thin volume."""

    def __init__(self, *, reserves: bool) -> None:
        self._reserves = reserves
        self.between: Callable[[], None] = lambda: None

    def write(self, fd: int, position: int, buffers: Sequence[Any]) -> int:
        data = b"".join(bytes(memoryview(item)) for item in buffers)
        for at in range(0, len(data), PIECE):
            super().write(fd, position + at, [data[at : at + PIECE]])
            if len(data) > PIECE:
                self.between()
        return len(data)

    def reserve(self, fd: int, position: int, length: int) -> None:
        if self._reserves:
            super().reserve(fd, position, length)


def batch(mark: int, rows: int = ROWS) -> pa.Table:
    """Records of 1000 bytes, 16 blocks of them."""
    return pa.table({"value": pa.array([b"%08d" % mark + bytes(992)] * rows, pa.binary())})


def marks(found: Sequence[int]) -> list[tuple[int, int]]:
    """Which batches, and how many records of each."""
    return [(mark, len(list(group))) for mark, group in groupby(found)]


@pytest.fixture(scope="module")
def beside() -> Iterator[Beside]:
    process = Beside()
    yield process
    process.end()


@pytest.mark.parametrize(
    ("kind", "reserves"),
    [("small_disk", False), ("small_ext4", False), ("small_ext4", True)],
    ids=["tmpfs, no room ahead", "ext4, no room ahead", "ext4"],
)
def test_of_refused_appends_nobody_sees_anything(
    request: pytest.FixtureRequest, beside: Beside, kind: str, reserves: bool, tmp_path: Path
) -> None:
    """Not a reader, mapping or not, nor a tierer, wherever in a write they look; nor does the bucket have any."""
    disk: SmallDisk = request.getfixturevalue(kind)
    root, cold, looks = disk.path / "data", f"file://{tmp_path}/bucket", 0

    def look() -> None:
        nonlocal looks
        looks += 1
        found = beside.look()
        assert (marks(found.mapped), marks(found.copied), found.problems) == (appended, appended, [])

    fs = CreepingDisk(reserves=reserves)
    with tiered.open(root, settings=settings_of(), cold=cold, host=Host(fs=fs)) as store:
        topic = store.create_topic("t")
        topic.append_batch(batch(0))
        appended, refused = [(0, ROWS)], 0
        beside.open(root, cold)
        look()
        disk.fill(1_600_000)
        fs.between = look
        for mark in range(1, 5):
            try:
                topic.append_batch(batch(mark))
            except tiered.DiskFull:
                refused += 1
            else:
                appended.append((mark, ROWS))
            look()
        fs.between = lambda: None
        disk.make_room()
        # Blocks of the size of those that were refused, but fewer: what were left of them would follow.
        topic.append_batch(batch(9, ROWS // 3))
        appended.append((9, ROWS // 3))
        look()
    assert (refused, len(appended)) == (3, 3)
    assert reserves or looks > 15
    with tiered.open(cold) as bucket:
        published = bucket.topic("t").scan().to_arrow().column("value").to_pylist()
    assert marks([int(value[:8]) for value in published]) == appended
    with tiered.open(root, settings=settings_of()) as store:
        assert store.topic("t").append(b"after", sync=True).offset == len(published)
    tally("disk full", appends_refused=refused, looks_beside=looks)
