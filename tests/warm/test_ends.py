"""What held at a border between two blocks of a segment, however much was written since."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.support.clock import Clock
from tests.support.stores import open_store
from tiered.format.codec import Codec
from tiered.warm.ends import SegmentEnds
from tiered.warm.reencode import rewrite_segment
from tiered.warm.segment_reader import SegmentFile


def written(tmp_path: Path, clock: Clock) -> Path:
    """A segment of blocks by producers and by nobody, with a mark that only begins a session between two of them."""
    with open_store(tmp_path / "data", None, clock) as store:
        topic = store.create_topic("t")
        for number in range(6):
            topic.append_many([b"%d" % number] * (number % 3 + 1))
            topic.flush()
            topic.producer(f"p{number % 2}").append(b"numbered %d" % number)
            topic.flush()
            clock.advance(1)
    (path,) = (tmp_path / "data" / "topics" / "t" / "0").glob("*.log")
    return path


def cut_at(path: Path, position: int, target: Path) -> SegmentFile:
    """The file as it was when it ended there."""
    shutil.copyfile(path, target)
    with target.open("r+b") as file:
        file.truncate(position)
    return SegmentFile.open(target)


def test_an_end_is_what_a_scan_of_the_file_cut_there_finds(tmp_path: Path, clock: Clock) -> None:
    """Asked for in any order; the hash and the producers are those of a file that was never longer."""
    segment = SegmentFile.open(written(tmp_path, clock))
    index = segment.index
    expected = {}
    (tmp_path / "cut").mkdir()
    for i in range(len(index)):
        end = index.base_offsets[i] + index.record_counts[i]
        cut = cut_at(
            segment.path, index.positions[i] + index.lengths[i], tmp_path / "cut" / segment.path.name
        )
        assert cut.scan is not None
        expected[end] = (cut.scan.content_hash.hexdigest(), cut.producers)
    assert len({found for found, _ in expected.values()}) == len(expected) > 10
    ends = SegmentEnds()
    for order in (
        sorted(expected),
        sorted(expected, reverse=True),
        random.Random(7).choices(sorted(expected), k=60),
    ):
        for end in order:
            assert (ends.hash_at(segment, end), ends.producers_at(segment, end)) == expected[end]


def test_where_no_block_ends_nothing_is_known(tmp_path: Path, clock: Clock) -> None:
    """So a log that ends there is another one."""
    segment, ends = SegmentFile.open(written(tmp_path, clock)), SegmentEnds()
    index = segment.index
    borders = {index.base_offsets[i] + index.record_counts[i] for i in range(len(index))}
    inside = set(range(1, segment.end_offset)) - borders
    assert inside
    for offset in inside:
        assert ends.hash_at(segment, offset) is None
        assert ends.producers_at(segment, offset) is None
    assert ends.hash_at(segment, min(borders))


def test_of_a_sealed_segment_the_end_is_its_origin_and_of_a_re_encoded_one_nothing_else(
    tmp_path: Path, clock: Clock
) -> None:
    path = written(tmp_path, clock)
    first = SegmentFile.open(path).index.record_counts[0]
    with open_store(tmp_path / "data", None, clock) as store:
        store.topic("t").roll()
        before = SegmentFile.open(path)
        assert before.facts is not None
        inside = SegmentEnds().hash_at(before, first)
        assert inside
        rewrite_segment(store.context.host.fs, path, Codec.ZSTD, 3)
    again = SegmentFile.open(path.with_name(path.name.replace("-0.log", "-1.log")))
    ends = SegmentEnds()
    for segment in (before, again):
        assert ends.hash_at(segment, segment.end_offset) == before.facts.origin_hash
        assert ends.producers_at(segment, segment.end_offset) == before.facts.producers
    assert ends.hash_at(again, first) == ""
    assert ends.producers_at(again, first) is None
    assert ends.hash_at(before, first) == inside


def test_each_block_is_looked_at_once_as_a_segment_grows(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where each look at the segment is another object."""
    looked: list[int] = []
    headers = SegmentFile.headers

    def counted(self: SegmentFile, position: int, end: int):
        for found in headers(self, position, end):
            looked.append(found[0].base_offset)
            yield found

    monkeypatch.setattr(SegmentFile, "headers", counted)
    ends = SegmentEnds()
    with open_store(tmp_path / "data", None, clock) as store:
        topic = store.create_topic("t")
        for number in range(5):
            topic.append(b"%d" % number, sync=True)
            (path,) = (tmp_path / "data" / "topics" / "t" / "0").glob("*.log")
            for _ in range(2):
                assert ends.hash_at(SegmentFile.open(path), number + 1)
    assert looked == list(range(5))
