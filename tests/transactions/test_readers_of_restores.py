"""Readers beside a store that a restore makes: at no moment, and after no crash, do they see a part of a transaction."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import tiered
from tests.support.clock import Clock
from tests.support.disk_model import EVERYTHING, NOTHING, Image
from tests.support.recorder import Recorder
from tests.transactions.lives import BUCKET, SHIPPED, check_each, host_of, opened

TOPICS = ("one", "two")


def publish(store: Any, topic: str) -> None:
    store.tierer.tails.publish(store.topic(topic).meta, 0)


def whole(store: tiered.Store) -> int:
    """Check that each transaction has two rows in both topics or none; return how many there are."""
    topics = [topic for topic in TOPICS if topic in store.topics()]
    snapshot = store.snapshot(topics)
    rows = {topic: snapshot.scan(topic).to_arrow()["value"].to_pylist() for topic in topics}
    found = {value for values in rows.values() for value in values if value.startswith(b"t")}
    assert all(values.count(value) == 2 for value in found for values in rows.values())
    return len(found)


def test_rows_that_a_restore_moves_are_seen_with_all_others(tmp_path: Path, clock: Clock) -> None:
    """Records before them were lost with the disk, so they get lower offsets than the log says."""
    (tmp_path / "life").mkdir()
    recorder = Recorder(tmp_path / "life")
    with opened(recorder, BUCKET, clock) as store:
        for topic in TOPICS:
            store.create_topic(topic)
        store.topic("two").append_many([b"lost"] * 3)
        for number in range(3):
            with store.transaction() as transaction:
                for topic in TOPICS:
                    transaction.append_many(topic, [b"t%d" % number] * 2)
        store.flush()
        publish(store, "one")
        objects = dict(recorder.bucket.objects)
    (tmp_path / "restore").mkdir()
    recorder = Recorder(tmp_path / "restore", Image(objects=objects))
    with tiered.restore(
        BUCKET, recorder.root / "data", settings=SHIPPED, host=host_of(recorder, clock)
    ) as store:
        assert whole(store) == 3
    seen = []

    def check(root: Path, image: Image, _: int) -> None:
        host = host_of(Recorder(root, image), clock)
        if (root / "data" / "store.json").exists():
            with tiered.open(
                root / "data", cold=BUCKET, read_only=True, settings=SHIPPED, host=host
            ) as reader:
                seen.append(whole(reader))
            with tiered.open(root / "data", cold=BUCKET, settings=SHIPPED, host=host) as store:
                assert whole(store) == 3

    moments = ((index, image) for index, _, image in recorder.crashes(lambda _: [EVERYTHING, NOTHING]))
    assert check_each(moments, tmp_path, 2, check) > 20
    assert {0, 3} <= set(seen)
