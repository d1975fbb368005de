"""The seam between a writer and a tierer that are two processes: what is asked, and what becomes of it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

import tiered
from tests.support.clock import Clock
from tests.support.stores import HOUR_US, local_segments, open_store, stepwise, values
from tiered.engine.writers import BackgroundFlush
from tiered.errors import CorruptionError
from tiered.hot.block_writer import BlockWriter
from tiered.hot.partition_writer import PartitionWriter
from tiered.reader.splits import Tier
from tiered.warm.filesystem import OsFileSystem
from tiered.warm.writer_requests import REQUEST_FILE, WriterRequest, post, take

FS = OsFileSystem()
ROLL = {"roll": {"bytes": "256MiB", "age": "1h"}}


@dataclass
class Pair:
    """A writer and a tierer of one store, as two processes have them: each with locks of its own."""

    path: Path
    clock: Clock
    writer: tiered.Store
    tierer: tiered.Store

    @property
    def topic(self) -> tiered.Topic:
        return self.writer.topic("t")

    @property
    def partition(self) -> PartitionWriter:
        return self.topic.opened.writers[0]

    @property
    def directory(self) -> Path:
        return self.path / "topics" / "t" / "0"

    def a_pass(self, ahead_us: int = 0) -> list[str]:
        report = self.tierer.tier((self.clock() + ahead_us) // 1000)
        assert report.failed == ()
        return [action.kind for action, _ in report.done]

    def tick(self) -> None:
        """What the writer's own thread does every ``sync_interval``."""
        BackgroundFlush(self.writer.context, self.writer.open_topics.writers).run()


@contextmanager
def pair(path: Path, cold: str | None, clock: Clock, **rules: object) -> Iterator[Pair]:
    # Only the tierer has the rules: what the writer does, it does because it was asked.
    with ExitStack() as stack:
        writer = stack.enter_context(open_store(path, cold, clock))
        writer.create_topic("t").append_many([b"%d" % number for number in range(10)])
        writer.flush()
        tierer = open_store(path, None, clock, settings=stepwise(**rules), tierer=True)
        yield Pair(path, clock, writer, stack.enter_context(tierer))


@pytest.fixture
def sealing(tmp_path: Path, clock: Clock) -> Iterator[Pair]:
    """Its tierer wants what is an hour old sealed."""
    with pair(tmp_path / "data", f"file://{tmp_path}/cold", clock, **ROLL) as found:
        yield found


def test_an_idle_writer_seals_when_the_tierer_asks(sealing: Pair) -> None:
    """Then the segment is offloaded and evicted, and the writer reads on and appends on."""
    assert sealing.a_pass(2 * HOUR_US) == ["seal"]
    assert len(local_segments(sealing.path, "t")) == 1, "only the writer may seal while it holds its lock"
    sealing.tick()
    assert len(local_segments(sealing.path, "t")) == 2
    assert not (sealing.directory / REQUEST_FILE).exists()
    assert "offload" in sealing.a_pass(5 * HOUR_US)
    sealing.partition.recent.clear()  # or memory would answer
    assert "evict_local" in sealing.a_pass(10 * HOUR_US)
    assert len(local_segments(sealing.path, "t")) == 1
    sealing.topic.append(b"10", sync=True)
    assert values(sealing.topic) == [b"%d" % number for number in range(11)]


def test_a_writer_reads_on_where_another_process_encodes_again_and_evicts(sealing: Pair) -> None:
    """It holds the segment open and in its listing; a snapshot from before and one from after both read all."""
    sealing.topic.roll()
    sealing.partition.recent.clear()  # or memory would answer
    expected = values(sealing.topic)
    before = sealing.topic.scan()
    assert "compress" in sealing.a_pass(2 * HOUR_US)
    during = sealing.topic.scan()
    assert values(sealing.topic) == expected
    sealing.a_pass(5 * HOUR_US)
    assert "evict_local" in sealing.a_pass(10 * HOUR_US)
    assert [values(before), values(during), values(sealing.topic)] == [expected] * 3
    assert sealing.topic.scan().splits()[0].tier is Tier.COLD


def test_a_writer_without_room_for_its_records_does_what_makes_room(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no bucket, nothing else lets retention remove a file."""

    def full(_: BlockWriter) -> None:
        raise tiered.DiskFull("no room on the local disk (injected)")

    with pair(tmp_path / "data", None, clock, retention={"age": "8h", "bytes": "off"}) as both:
        both.topic.roll()
        both.topic.append(b"10")
        clock.advance(9 * 3600)
        with monkeypatch.context() as patched:
            patched.setattr(BlockWriter, "drain", full)
            both.a_pass()
            with pytest.raises(tiered.DiskFull):
                both.tick()
            both.a_pass()
            assert [name[:20] for name in local_segments(both.path, "t")] == [f"{10:020}"]
        assert values(both.topic) == [b"10"]


def test_a_tail_pass_right_after_a_roll_ships_the_sealed_segment(sealing: Pair) -> None:
    """Behind it lies an empty one, which has nothing to ship."""
    sealing.topic.roll()
    report = sealing.tierer.tierer.tail_pass().report
    assert [(action.base_offset, action.end_offset) for action, _ in report.done] == [(0, 10)]
    assert sealing.tierer.tierer.tail_pass().report.done == ()


@contextmanager
def expiring(path: Path, with_bucket: bool, clock: Clock) -> Iterator[Pair]:
    """A tierer has just asked a writer, whose ten oldest records are a day old, to begin behind them."""
    cold = f"file://{path}/cold" if with_bucket else None
    with pair(path / "data", cold, clock, retention={"age": "1d"}, offload="off") as found:
        found.topic.roll()
        clock.advance(20 * 3600)
        found.topic.append(b"new", sync=True)
        assert found.a_pass(10 * HOUR_US) == ["expire"]
        yield found


@pytest.mark.parametrize("with_bucket", [True, False])
def test_retention_reaches_a_store_whose_writer_never_closes(
    tmp_path: Path, clock: Clock, with_bucket: bool
) -> None:
    """The tierer asks, the writer moves the start offset, and the files go; nobody waits for the writer."""
    with expiring(tmp_path, with_bucket, clock) as found:
        found.tick()
        assert found.topic.offsets()[0].start == 10
        found.a_pass(11 * HOUR_US)
        assert local_segments(found.path, "t") == [f"{10:020}-0.log"]
        assert values(found.topic) == [b"new"]
        found.topic.append(b"newer", sync=True)
        assert values(found.topic) == [b"new", b"newer"]


@pytest.mark.parametrize("with_bucket", [True, False])
def test_what_the_bucket_has_expired_is_gone_here_too_after_the_writer_died(
    tmp_path: Path, clock: Clock, with_bucket: bool
) -> None:
    """Without a bucket the request is dropped, and nothing was removed: the policy may be another by then."""
    with expiring(tmp_path, with_bucket, clock) as found:
        found.writer.close()
        with open_store(found.path, None, clock) as again:
            topic = again.topic("t")
            topic.append(b"newer", sync=True)
            BackgroundFlush(again.context, again.open_topics.writers).run()
            start = topic.offsets()[0].start
            assert start == (10 if with_bucket else 0)
            assert values(topic)[-2:] == [b"new", b"newer"]
            assert len(values(topic)) == 12 - start
        assert not (found.directory / REQUEST_FILE).exists()


def test_what_is_asked_too_late_or_of_somebody_else_changes_nothing(sealing: Pair) -> None:
    """Of another segment, of the topic that had this name before, beyond the end, or not a document at all."""
    meta, active = sealing.topic.opened.meta, sealing.partition.active_segment_id
    sealing.topic.append(b"pending")
    for asked in (WriterRequest(meta.topic_id, uuid4()), WriterRequest(uuid4(), active, 5)):
        post(FS, sealing.directory, asked)
        sealing.tick()
        assert sealing.partition.active_segment_id == active
        assert sealing.partition.start_offset == 0
    post(FS, sealing.directory, WriterRequest(meta.topic_id, start_offset=1 << 40))
    sealing.tick()
    assert sealing.partition.start_offset <= sealing.partition.durable_offset
    for damaged in (b"", b"{}", b"\xff", b'{"crc32c": 1, "format": 1}'):
        (sealing.directory / REQUEST_FILE).write_bytes(damaged)
        sealing.tick()
        assert not (sealing.directory / REQUEST_FILE).exists()
    assert sealing.partition.active_segment_id == active


def test_a_request_does_not_outlive_the_writer_that_it_was_for(sealing: Pair) -> None:
    """The next writer may come after the policy was changed."""
    sealing.a_pass(2 * HOUR_US)
    assert (sealing.directory / REQUEST_FILE).exists()
    half_made = sealing.directory / f".{REQUEST_FILE}.tmp"
    half_made.write_bytes(b"a tierer was killed")
    sealing.a_pass(2 * HOUR_US)
    assert not half_made.exists()
    sealing.writer.close()
    with open_store(sealing.path, None, sealing.clock) as again:
        again.topic("t").append(b"10", sync=True)
        assert not (sealing.directory / REQUEST_FILE).exists()
        BackgroundFlush(again.context, again.open_topics.writers).run()
        assert len(local_segments(sealing.path, "t")) == 1


def test_a_request_that_cannot_be_taken_does_not_stand_in_the_way_of_a_flush(sealing: Pair) -> None:
    """A directory instead of a file: it can be neither read nor removed."""
    (sealing.directory / REQUEST_FILE).mkdir()
    sealing.topic.append(b"10")
    with pytest.raises(tiered.ReadOnly, match=f"cannot remove .*{REQUEST_FILE}"):
        sealing.tick()
    assert sealing.partition.durable_offset == 11


def test_requests_add_up_until_they_are_taken(tmp_path: Path) -> None:
    topic, segment = uuid4(), uuid4()
    post(FS, tmp_path, WriterRequest(topic, segment))
    post(FS, tmp_path, WriterRequest(topic, start_offset=7))
    post(FS, tmp_path, WriterRequest(topic, start_offset=3))
    assert take(FS, tmp_path) == WriterRequest(topic, segment, 7)
    assert take(FS, tmp_path) is None
    post(FS, tmp_path, WriterRequest(topic, segment))
    post(FS, tmp_path, WriterRequest(uuid4(), start_offset=3))
    found = take(FS, tmp_path)
    assert found is not None
    assert (found.seal, found.start_offset) == (None, 3), "what was asked of the topic before is void"


def test_verify_finds_nothing_wrong_with_a_request(sealing: Pair) -> None:
    sealing.a_pass(2 * HOUR_US)
    assert (sealing.directory / REQUEST_FILE).exists()
    assert sealing.tierer.verify(deep=True).problems == ()
    (sealing.directory / REQUEST_FILE).write_bytes(b"damaged")
    assert not any(isinstance(item, CorruptionError) for item in sealing.tierer.verify(deep=True).problems)
