"""The power goes around an append of several blocks that was refused: what was written of it, and cut, comes back or not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.disk_model import BYTES, EVERYTHING, LAST, NOTHING, Image, some
from tests.support.recorder import Recorder
from tests.support.segments import append, body_of, header_of, read
from tests.support.tally import tally
from tiered.errors import DiskFull
from tiered.warm.filesystem import OsFileSystem
from tiered.warm.partition_directory import list_segments
from tiered.warm.segment_reader import SegmentFile
from tiered.warm.segment_writer import SegmentWriter

DURABLE = [b"durable"]
REFUSED = [b"refused 1", b"refused 2", b"refused 3"]
SEEDS = 150


def append_blocks(writer: SegmentWriter, values: Sequence[bytes]) -> None:
    writer.append([body_of([value]) for value in values], 3_000)


class Life:
    """A segment: a block that is durable, blocks of which write number `fails` is refused, and blocks in their place.

    Attributes
    ----------
    refused, accepted
        Operations of the journal by when the one was refused, and the other appended.
    """

    def __init__(self, root: Path, fails: int, accepted: list[bytes]) -> None:
        root.mkdir()
        self.recorder = recorder = Recorder(root)
        recorder.make_directory(root / "0")
        self.writer = SegmentWriter.create(recorder, root / "0", header_of())
        append(self.writer, *DURABLE)
        self.writer.sync()
        left = fails

        def fault(name: str) -> None:
            nonlocal left
            left -= name == "write"
            if left < 0:
                recorder.fault = None
                raise DiskFull("no room (injected)")

        self.begin = len(recorder.journal)
        recorder.fault = fault
        with pytest.raises(DiskFull):
            append_blocks(self.writer, REFUSED)
        self.refused = len(recorder.journal)
        append_blocks(self.writer, accepted)
        self.writer.sync()

    def images(self) -> list[tuple[int, Image]]:
        """What crashes leave, from the refused append on, and after how many operations."""
        losses = [EVERYTHING, NOTHING, BYTES, LAST, *(some(seed) for seed in range(SEEDS))]
        return [
            (index, image)
            for index, _, image in self.recorder.crashes(lambda index: losses if index >= self.begin else [])
        ]


@pytest.mark.extended
@pytest.mark.parametrize("fails", [0, 1], ids=["refused at the blocks", "refused at the header"])
@pytest.mark.parametrize("accepted", [1, 2], ids=["one block follows", "two blocks follow"])
def test_refused_blocks_never_come_back(fails: int, accepted: int, tmp_path: Path) -> None:
    """Blocks that follow are as long: on the disk, those of the refused append lie right behind them, valid."""
    follow = [value.replace(b"refused", b"follows") for value in REFUSED[:accepted]]
    life = Life(tmp_path / "life", fails, follow)
    states = set[bytes]()
    for index, image in life.images():
        [data] = [data for path, data in image.files.items() if path.endswith(".log")]
        if data in states:
            continue
        states.add(data)
        directory = tmp_path / str(len(states))
        directory.mkdir()
        path = directory / life.writer.path.name
        path.write_bytes(data)
        found = read(path)
        possible = [*DURABLE, *(REFUSED if index < life.refused else follow)]
        assert found == possible[: len(found)], f"after operation {index}"
        assert found[: len(DURABLE)] == DURABLE
        if index == len(life.recorder.journal):
            assert found == possible
        _go_on(path, found)
    assert len(states) > 20
    tally("power cut", states=len(states))


def _go_on(path: Path, found: list[bytes]) -> None:
    """The next writer appends blocks of the same size: nothing of what the crash left gets in between."""
    segment = SegmentFile.open(path)
    assert segment.scan is not None
    writer = SegmentWriter.resume(OsFileSystem(), path, segment.header, segment.scan)
    append(writer, b"the next")
    writer.close()
    assert read(path) == [*found, b"the next"]
    assert len(list_segments(path.parent).segments) == 1
