"""What the background thread of a store with many partitions does at each run."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import tiered
from tests.support.clock import Clock
from tests.support.stores import open_store, stepwise
from tiered.engine import writers
from tiered.engine.writers import BackgroundFlush
from tiered.hot.partition_writer import PartitionWriter
from tiered.warm.filesystem import OsFileSystem
from tiered.warm.writer_requests import REQUEST_FILE, WriterRequest, post

PARTITIONS = 20
INTERVAL_SECONDS = 0.05  # so one of them at each run is enough


@pytest.fixture
def store(tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Iterator[tiered.Store]:
    monkeypatch.setattr(writers, "_TURN_WRITERS", 8)
    settings = stepwise(roll={"age": "1h"})
    with open_store(tmp_path / "data", None, clock, settings=settings) as store:
        topic = store.create_topic("t", partitions=PARTITIONS)
        for partition in range(PARTITIONS):
            topic.append(b"v", partition=partition)
        yield store


def found(store: tiered.Store) -> list[PartitionWriter]:
    return store.open_topics.writers()


def test_each_run_flushes_every_partition(store: tiered.Store) -> None:
    background = BackgroundFlush(store.context, store.open_topics.writers, INTERVAL_SECONDS)
    for end in (1, 2, 3):
        background.run()
        assert {writer.durable_offset for writer in found(store)} == {end}
        for partition in range(PARTITIONS):
            store.topic("t").append(b"v", partition=partition)


def test_each_partition_has_its_turn_of_the_rest(store: tiered.Store, clock: Clock) -> None:
    """Three runs for 20 partitions, 8 at a time: rolls, requests, and again from the first one."""
    background = BackgroundFlush(store.context, store.open_topics.writers, INTERVAL_SECONDS)
    background.run()
    fs = OsFileSystem()
    before = {writer.partition: writer.active_segment_id for writer in found(store)}
    for writer in found(store):
        post(fs, writer.directory, WriterRequest(writer.meta.topic_id, forget=True))
    clock.advance(7200)

    def waiting() -> int:
        return sum((writer.directory / REQUEST_FILE).exists() for writer in found(store))

    def rolled() -> int:
        return sum(writer.active_segment_id != before[writer.partition] for writer in found(store))

    seen = []
    for _ in range(3):
        background.run()
        seen.append((waiting(), rolled()))
    # The first run above had the turn of the first 8.
    assert seen == [(12, 8), (8, 12), (0, 20)]


def test_all_have_their_turn_within_a_second(store: tiered.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the interval is, and however many partitions there are."""
    monkeypatch.setattr(writers, "_TURN_WRITERS", 1)
    looked: list[Path] = []
    monkeypatch.setattr(writers, "serve_requests", lambda writer, _: looked.append(writer.directory))
    background = BackgroundFlush(store.context, store.open_topics.writers, INTERVAL_SECONDS)
    runs = round(1 / INTERVAL_SECONDS)
    for _ in range(runs):
        background.run()
    # Stores that other tests keep open have threads of their own.
    assert set(looked) >= {writer.directory for writer in found(store)}
