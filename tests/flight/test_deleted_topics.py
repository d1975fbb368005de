"""What a handle of a topic that was deleted and created again does: nothing to the new one, and it says so."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiered

CALLS: dict[str, Callable[[Any], object]] = {
    "scan": lambda topic: topic.scan(),
    "read": lambda topic: list(topic.read()),
    "follow": lambda topic: next(iter(topic.read(follow=True))),
    "offsets": lambda topic: topic.offsets(),
    "offset_at": lambda topic: topic.offset_at(0),
    "append": lambda topic: topic.append(b"x", sync=True),
    "producer": lambda topic: topic.producer("ingest"),
    "flush": lambda topic: topic.flush(),
    "roll": lambda topic: topic.roll(),
    "delete_before": lambda topic: topic.delete_before(2),
    "add_partitions": lambda topic: topic.add_partitions(2),
    "add_columns": lambda topic: topic.add_columns(pa.schema([("n", pa.int64())])),
}


def test_an_old_handle_does_nothing_to_the_new_topic(remote: tiered.Store, store: tiered.Store) -> None:
    old = remote.create_topic("orders")
    old.append(b"old", sync=True)
    store.delete_topic("orders")
    new = store.create_topic("orders")
    new.append_many([b"a", b"b", b"c"])
    new.flush()
    for name, call in CALLS.items():
        with pytest.raises(tiered.TopicNotFound):
            pytest.fail(f"{name} gave {call(old)!r}")
    assert (new.partitions, new.offsets()) == (1, {0: (0, 0, 3)})
    assert remote.topic("orders").offsets() == {0: (0, 0, 3)}


def test_a_client_sees_which_deletions_are_not_finished(remote: tiered.Store, store: tiered.Store) -> None:
    """The topic is gone for it, too."""
    store.create_topic("orders").append(b"v", sync=True)
    topics = Path(store.url) / "topics"
    assert remote.status().deletions == ()
    (topics / "orders").rename(topics / ".deleting-by-hand")
    assert remote.topics() == []
    assert remote.status().deletions == store.status().deletions == ("orders",)
