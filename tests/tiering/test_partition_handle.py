"""The handle of a partition: which topic it is of, and what it reads anew at each use."""

from __future__ import annotations

from pathlib import Path

import pytest

import tiered
from tests.support.clock import Clock
from tests.support.stores import handle_of, open_store
from tiered.tiering.partition_handle import PartitionHandle


def test_a_deleted_topic_has_no_handle_although_another_has_its_name(tmp_path: Path, clock: Clock) -> None:
    """The writers and the directory would be those of the other topic."""
    with open_store(tmp_path / "data", None, clock) as store:
        old = store.create_topic("t").opened.meta
        store.delete_topic("t")
        new = store.create_topic("t").opened.meta
        with pytest.raises(tiered.TopicNotFound, match="was deleted and created again"):
            handle_of(store, old, 0)
        assert handle_of(store, new, 0).key == (new.topic_id, 0)
        assert PartitionHandle.named(store.open_topics, "t", 0).key == (new.topic_id, 0)


def test_a_handle_sees_the_writer_that_an_append_opens_later(tmp_path: Path, clock: Clock) -> None:
    with open_store(tmp_path / "data", None, clock) as store:
        topic = store.create_topic("t")
        handle = handle_of(store, topic.opened.meta, 0)
        assert handle.writer is None
        assert handle.local().segments == ()
        topic.append(b"v", sync=True)
        assert handle.writer is topic.opened.writers[0]
        assert [segment.end_offset for segment in handle.local().segments] == [1]
