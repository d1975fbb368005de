"""Erasures: what a caller may ask, how they come to their end, and how the log is read where records are missing."""

from __future__ import annotations

import errno
import itertools
import os
import re
import shutil
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiered
from tests.support.byte_search import files_with
from tests.support.clock import Clock
from tests.support.disks import FailingDisk
from tests.support.erasure_passes import KEPT, fill_named, numbers_named, run_passes, try_passes
from tests.support.stores import HOUR_US, handle_of, open_store, stepwise
from tests.support.waiting import wait_until
from tests.support.watched_bucket import WatchedBucket, away, open_at
from tiered.cold.manifest.partition_manifest import PartitionManifest
from tiered.cold.object_store.connect import open_object_store
from tiered.engine.host import Host
from tiered.errors import (
    ColdStorageError,
    ConfigError,
    CorruptionError,
    ReadOnly,
    SchemaMismatch,
    UnsupportedFormat,
)
from tiered.format import document
from tiered.format.erasure import encode_values
from tiered.hot.writer_requests import serve_requests
from tiered.policies.actions import Erase
from tiered.tiering import erase_actions, table_passes

SETTINGS = stepwise(offload={"after": "2h", "tail_interval": "off"}, local_retention={"age": "9h"})


@pytest.fixture
def store(tmp_path: Path, url: str, clock: Clock) -> Any:
    with open_store(tmp_path / "data", url, clock, settings=SETTINGS) as found:
        yield found


def test_an_erasure_comes_to_its_end_step_by_step(
    store: tiered.Store, tmp_path: Path, clock: Clock, days: Any
) -> None:
    topic = fill_named(store)
    erasure = topic.erase(["b"], reason="DSAR-4711\n  of today")
    assert (erasure.number, erasure.topic, erasure.state, erasure.rows) == (1, "t", "rewriting", 0)
    entry = erasure.entry
    assert (entry.column, entry.values, entry.horizons, entry.reason) == (
        "key",
        1,
        (30,),
        "DSAR-4711 of today",
    )
    topic.append(b"<of b> later", key="b")
    kinds = []
    for _ in range(3):
        kinds.append([action.kind for action, _ in store.tier().done])
        clock.advance(60)
    # Offloaded at once, although the policy waits for two hours; the local files go only then.
    assert kinds == [["offload"] * 3, ["erase"], []]
    assert (erasure.state, erasure.rows) == ("sweeping", 10)
    assert "is kept for sweep.grace; a sweep deletes it" in erasure.waits_for
    assert erasure.wait(0.01) is False
    (line,) = store.status().erasures
    assert line.startswith("erasure 1 of topic t is sweeping, to be done by ")
    assert line.endswith(f"; it waits: {erasure.waits_for}")
    with tiered.open(tmp_path / "data", read_only=True) as other:
        assert other.erasures()[0].waits_for == erasure.waits_for
    assert [x.number for x in store.erasures()] == [1]
    days(2)
    store.sweep()
    days(2)
    store.sweep()
    store.tier()
    assert erasure.state == "done"
    assert erasure.wait(0)
    assert erasure.waits_for == ""
    assert erasure.to_json()["state"] == "done"
    assert store.status().erasures == ()
    assert not (tmp_path / "data" / "erasures-wait.json").exists()
    assert [*tmp_path.glob("*/erasures/*")] == []
    found = topic.scan(columns=["offset", "value"]).to_arrow().to_pydict()
    assert found["offset"] == [*KEPT, 30]
    assert found["value"][-1] == b"<of b> later"
    topic.flush()
    (only,) = files_with(tmp_path, b"<of b>")
    assert only.endswith("00000000000000000030-0.log")
    assert files_with(tmp_path, b"DSAR-4711") == ["bucket/erasures.json", "data/erasures.json"]
    assert store.verify(deep=True).problems == ()


def test_a_topic_without_records_in_a_store_that_has_published_nothing(
    store: tiered.Store, clock: Clock, days: Any
) -> None:
    """No action would ever claim the bucket, which the ledger needs: the erasure would be late for nothing."""
    erasure = store.create_topic("t", partitions=2).erase(["b"])
    run_passes(store, clock, days, 2)
    assert (erasure.state, erasure.waits_for) == ("done", "")


@pytest.mark.parametrize("name", ["t", None], ids=["topic", "store"])
def test_a_pause_is_what_it_waits_for(store: tiered.Store, clock: Clock, days: Any, name: str | None) -> None:
    """An operator who forgot the pause would learn of it after the deadline."""
    erasure = fill_named(store).erase(["b"])
    store.pause(name, reason="export")
    run_passes(store, clock, days, 2)
    assert re.search("topic t is paused .*: export; tiered resume ends that", erasure.waits_for)
    store.resume(name)
    run_passes(store, clock, days)
    assert (erasure.state, erasure.waits_for) == ("done", "")


def test_one_that_is_late_is_in_the_log_each_day(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Also while the bucket is away, and the status says so."""
    bucket, clock = WatchedBucket(), Clock()
    with open_at(tmp_path / "data", bucket, clock, settings=SETTINGS) as store:
        fill_named(store).erase(["b"])
        bucket.hook = away
        late = []
        for _ in range(3 * 33):
            clock.advance(8 * 3600)
            with pytest.raises(ColdStorageError):
                store.tier()
            late.append(sum("is late" in record.message for record in caplog.records))
        assert (late[89], late[-1]) == (0, 3)
        assert "erasure 1 of t is late: it was to be done by " in caplog.text
        assert "; it waits: ColdStorageError: cannot get " in caplog.text
        (line,) = store.status().erasures
        assert line.startswith("erasure 1 of topic t is late: it is rewriting, and was to be done by ")


def test_an_orphan_that_cannot_be_searched_is_waited_for(
    store: tiered.Store, tmp_path: Path, clock: Clock, days: Any
) -> None:
    """As one that a stalled process has brought back, and the bucket damaged: it may hold erased records."""
    erasure = fill_named(store, 1).erase(["b"])
    store.tier()
    (orphan,) = tmp_path.glob("bucket/t/*/0/data/*.parquet")
    data = orphan.read_bytes()
    store.tier()
    for _ in range(2):
        clock.advance(60)
        days(2)
        store.sweep()
    assert not orphan.exists()
    assert erasure.state == "sweeping"
    orphan.write_bytes(data[: len(data) // 2])
    store.tier()
    assert erasure.state == "sweeping"
    assert f"{orphan.name} is kept for sweep.grace; a sweep deletes it" in erasure.waits_for
    run_passes(store, clock, days)
    assert not orphan.exists()
    assert erasure.state == "done"


@pytest.mark.parametrize("step", ["count_erased", "rewrite"])
def test_damage_that_a_pass_meets_is_noted(
    store: tiered.Store, clock: Clock, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """In what it searches, and in what it writes again: no local file of a damaged object may go."""

    def fail(*_: Any, **__: Any) -> None:
        raise CorruptionError("row group fails its checksum")

    topic = fill_named(store, 1)
    clock.advance(3 * 3600)
    store.tier()
    erasure = topic.erase(["b"])
    monkeypatch.setattr(erase_actions, step, fail)
    ((action, error),) = store.tier().failed
    assert (action.kind, error.partition(" ")[0]) == ("erase", "CorruptionError:")
    (row,) = store.status()
    (line,) = row.damaged
    assert "row group fails its checksum" in line
    assert erasure.state == "rewriting"


def test_a_shipped_tail_is_left_to_its_segment(tmp_path: Path, url: str, clock: Clock, days: Any) -> None:
    """By an action that was planned before the segment was known: the whole object would bring the records back."""
    settings = stepwise(offload={"after": "2h", "tail_interval": "1s"}, local_retention={"age": "9h"})
    with open_store(tmp_path / "data", url, clock, settings=settings) as store:
        topic = fill_named(store, 1)
        topic.append(b"<of b> 10", key="b")
        topic.publish()
        handle = handle_of(store, topic.meta, 0)
        erasure = topic.erase(["b"])
        store.tierer.handlers[Erase](
            Erase(
                topic="t",
                partition=0,
                segment_id=None,
                base_offset=0,
                end_offset=11,
                bytes=0,
                reason="a test",
            )
        )
        head = handle.manifest.load().head
        assert [(entry.sealed, entry.lacks_records) for entry in head.inline] == [
            (True, True),
            (False, False),
        ]
        assert [mark.offset for mark in head.erased] == [10]
        run_passes(store, clock, days)
        assert erasure.state == "done"
        assert numbers_named(topic) == [number for number in KEPT if number < 10]
        assert all(entry.sealed for entry in handle.manifest.load().head.inline)


def test_a_value_that_equals_nothing_is_refused_beside_others(store: tiered.Store) -> None:
    """To leave it out would be an erasure that is done while its records are there."""
    topic = store.create_topic("f", schema=pa.schema([("f", pa.float64())]))
    topic.append({"f": float("nan")})
    with pytest.raises(ConfigError, match="null and NaN equal none"):
        topic.erase(column="f", values=[1.5, float("nan")])
    assert store.erasures() == []


@pytest.mark.extended
@pytest.mark.parametrize("column", ["n", "flag", "text"])
@pytest.mark.parametrize(
    "endless", [range(1 << 60), itertools.count(), itertools.repeat(0), itertools.repeat("x" * 100_000)]
)
def test_too_many_values_are_refused_before_they_are_looked_at(
    store: tiered.Store, column: str, endless: Iterable[object]
) -> None:
    """The iterable may be endless, or have values of which many are the same."""
    schema = pa.schema([("n", pa.int64()), ("flag", pa.bool_()), ("text", pa.string())])
    topic = store.create_topic("t", schema=schema)
    with pytest.raises(
        ConfigError, match="takes at most 1,000,000 values and 67,108,864 bytes of them; divide"
    ):
        topic.erase(column=column, values=endless)
    assert store.erasures() == []


def test_a_record_counts_for_one_erasure(store: tiered.Store, clock: Clock, days: Any) -> None:
    """For the first of those that are open and have its value."""
    topic = fill_named(store)
    for keys in (["a", "b"], ["b"], ["c", "b"], ["a", "b", "c"]):
        topic.erase(keys)
    topic.erase(column="value", values=[b"<of a> 0"])
    assert [x.number for x in store.erasures()] == [1, 2, 3, 4, 5]
    run_passes(store, clock, days)
    assert [(x.state, x.rows) for x in store.erasures()] == [("done", rows) for rows in (20, 0, 10, 0, 0)]
    assert numbers_named(topic) == []


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({}, ConfigError, "takes keys, or a column and its values"),
        ({"keys": ["a"], "values": ["a"]}, ConfigError, "takes keys, or a column"),
        ({"keys": ["a"], "column": "value"}, ConfigError, "takes keys, or a column"),
        ({"keys": []}, ConfigError, "without values"),
        ({"keys": "abc"}, ConfigError, "takes a list of values"),
        ({"keys": [None]}, ConfigError, "null and NaN equal none"),
        ({"keys": ["a", None]}, ConfigError, "null and NaN equal none"),
        ({"column": "nope", "values": [1]}, SchemaMismatch, "no column 'nope'"),
        ({"column": "headers", "values": [1]}, SchemaMismatch, "compares plain values"),
        ({"keys": ["a"], "reason": "x" * 2000}, ConfigError, "at most 1000 characters"),
    ],
)
def test_what_is_no_erasure_is_refused(
    store: tiered.Store, arguments: dict[str, Any], error: type[Exception], text: str
) -> None:
    topic = fill_named(store, 1)
    with pytest.raises(error, match=text):
        topic.erase(**arguments)
    assert store.erasures() == []
    assert "erasures" not in store.context.catalog.features()


def test_it_needs_a_bucket_and_a_writer(tmp_path: Path, url: str, clock: Clock) -> None:
    with open_store(tmp_path / "alone", None, clock) as store:
        topic = fill_named(store, 1)
        with pytest.raises(ConfigError, match="has no bucket"):
            topic.erase(["a"])
    off = stepwise(offload="off")
    with open_store(tmp_path / "off", url, clock, settings=off) as store:
        with pytest.raises(ConfigError, match="set offload.after"):
            fill_named(store, 1).erase(["a"])
    with open_store(tmp_path / "off", url, clock, settings=off, read_only=True) as store:
        with pytest.raises(ReadOnly):
            store.topic("t").erase(["a"])
    with open_store(tmp_path / "on", url, clock, settings=SETTINGS) as store:
        fill_named(store, 1)
        clock.advance(3 * 3600)
        store.tier()
    with tiered.open(url) as bucket, pytest.raises(ReadOnly, match="name the local store"):
        bucket.erasures()


def test_a_column_of_a_typed_topic(store: tiered.Store, tmp_path: Path, clock: Clock, days: Any) -> None:
    """Of several types at once, with nulls, and in objects from before the column was there."""
    topic = store.create_topic("t", schema=pa.schema([("n", pa.int64())]))
    topic.append({"n": 1})
    topic.add_columns(
        pa.schema([("at", pa.timestamp("us", "UTC")), ("user", pa.string()), ("x", pa.float64())])
    )
    for number in range(10):
        topic.append(
            {"n": number, "at": number * 1000, "user": f"u{number}" if number % 4 else None, "x": number / 2}
        )
    topic.erase(column="user", values=["u1", "u2"])
    topic.erase(column="at", values=[3000])
    topic.erase(column="x", values=[-0.0, 2.0])
    with pytest.raises(ConfigError, match="no key; name the column"):
        topic.erase(["u1"])
    run_passes(store, clock, days)
    assert [x.state for x in store.erasures()] == ["done"] * 3
    assert [x.rows for x in store.erasures()] == [2, 1, 2]
    assert topic.scan(columns=["n"]).to_arrow()["n"].to_pylist() == [1, 5, 6, 7, 8, 9]
    assert topic.scan(columns=["offset"]).to_arrow()["offset"].to_pylist() == [0, 6, 7, 8, 9, 10]


def test_every_reader_goes_on_behind_erased_records(
    store: tiered.Store, tmp_path: Path, url: str, clock: Clock, days: Any
) -> None:
    """At the beginning, in the middle, whole objects, and up to the end of the log."""
    topic = store.create_topic("t")
    for number in range(30):
        topic.append(b"%d" % number, key="gone" if number < 12 or number > 24 else "kept")
        if number % 10 == 9:
            topic.roll()
    consumer = topic.consumer("before")
    assert len(consumer.poll()[0]) == 30
    consumer.seek("earliest")
    topic.erase(["gone"])
    run_passes(store, clock, days)
    kept = list(range(12, 25))
    assert [record.offset for record in topic.read(0, 0, 30)] == kept
    assert [record.offset for record in topic.read(0, 3, 2)] == [12, 13]
    assert list(topic.read(0, 27, 2)) == []
    assert topic.offsets()[0] == tiered.OffsetRange(0, 0, 30)
    with store.serve("127.0.0.1:0") as server, tiered.open(server.location) as remote:
        for reader in (topic, remote.topic("t")):
            assert [record.offset for record in reader.read(0, 0, 30)] == kept
            assert [record.offset for record in reader.read(0, 3, 2)] == [12, 13]
            assert list(reader.read(0, 27, 2)) == []
            assert reader.scan(columns=["value"]).to_arrow().num_rows == 13
            another = reader.consumer(f"of {type(reader).__name__}")
            (batch,) = another.poll(0, 5)
            assert batch["offset"].to_pylist() == [12, 13, 14, 15, 16]
            (batch,) = another.poll(0)
            assert batch["offset"].to_pylist() == kept[5:]
            assert another.poll(0) == []
            assert another.position() == {0: 30}
            assert another.lag() == {0: 0}
            another.commit()
            another.close()
    (batch,) = consumer.poll(0)
    assert batch["offset"].to_pylist() == kept
    # Behind the erased end it waits, and does not spin.
    calls = []
    real = type(topic).durable_batches
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(topic), "durable_batches", lambda *a: calls.append(1) or real(*a))
        assert consumer.poll(0.3) == []
    assert len(calls) < 5
    iterated = iter(topic.consumer("iterated"))
    assert [next(iterated).offset for _ in kept] == kept
    follower = topic.read(0, 20, follow=True)
    seen = []
    thread = threading.Thread(target=lambda: seen.extend(next(follower).offset for _ in range(6)))
    thread.start()
    topic.append(b"new", key="gone")
    topic.flush()
    thread.join(10)
    assert seen == [20, 21, 22, 23, 24, 30]


def test_a_restore_takes_over_what_is_open(tmp_path: Path, url: str, clock: Clock, days: Any) -> None:
    with open_store(tmp_path / "old", url, clock, settings=SETTINGS) as store:
        topic = fill_named(store)
        topic.erase(["b"])
        store.tier()
        topic.append(b"<of b> lost", key="b")
    with tiered.restore(url, tmp_path / "new", settings=SETTINGS, host=Host(clock=clock)) as store:
        topic = store.topic("t")
        assert [(x.number, x.state) for x in store.erasures()] == [(1, "rewriting")]
        assert topic.erase(["gone"]).number == 2
        topic.append(b"<of b> after", key="b")
        run_passes(store, clock, days)
        assert [(x.number, x.state) for x in store.erasures()] == [(1, "done"), (2, "done")]
        assert topic.scan().to_arrow()["value"].to_pylist()[-1] == b"<of b> after"
        assert topic.scan(columns=["offset"]).to_arrow()["offset"].to_pylist() == [*KEPT, 30]
    with pytest.raises(UnsupportedFormat), pytest.MonkeyPatch.context() as older:
        older.setattr(document, "KNOWN_FEATURES", frozenset({"transactions"}))
        tiered.open(tmp_path / "new", settings=SETTINGS)


def test_records_after_a_restore_to_a_time_are_no_business_of_an_earlier_erasure(
    tmp_path: Path, url: str, clock: Clock, days: Any
) -> None:
    """They take the offsets of records that the restore undid, below the horizon."""
    with open_store(tmp_path / "old", url, clock, settings=SETTINGS) as store:
        topic = fill_named(store, 1)
        clock.advance(3 * 3600)
        store.tier()
        moment = clock() // 1000
        clock.advance(3600)
        for number in range(10, 20):
            topic.append(b"<of b> %d" % number, key="b")
        erasure = topic.erase(["b"])
        store.tier()
        store.tier()
        assert erasure.state == "sweeping"
        assert erasure.rows == 13
    with tiered.restore(url, tmp_path / "new", settings=SETTINGS, host=Host(clock=clock), at=moment) as store:
        topic = store.topic("t")
        assert topic.offsets()[0].end == 10
        topic.append(b"<of b> 10", key="b")
        run_passes(store, clock, days)
        assert [x.state for x in store.erasures()] == ["done"]
        assert numbers_named(topic) == [0, 2, 3, 5, 6, 8, 9, 10]


def test_a_writer_in_another_process_is_asked_to_shorten_its_log(
    tmp_path: Path, url: str, clock: Clock, days: Any
) -> None:
    """It is open, and commits nothing more."""
    settings = stepwise({"sync_interval": "20ms"}, offload={"after": "2h", "tail_interval": "1s"})
    with (
        open_store(tmp_path / "data", url, clock, settings=settings) as writer,
        open_store(tmp_path / "data", url, clock, settings=settings, tierer=True) as daemon,
    ):
        topic = writer.create_topic("t")
        with writer.transaction() as transaction:
            transaction.append("t", b"<of b>", key="b")
            transaction.append("t", b"of a", key="a")
        erasure = topic.erase(["b"])

        def done() -> bool:
            clock.advance(HOUR_US / 1e6)
            daemon.tier()
            days(2)
            daemon.sweep()
            return erasure.state == "done"

        wait_until(done, seconds=60)
        assert topic.scan().to_arrow()["value"].to_pylist() == [b"of a"]
    assert files_with(tmp_path, b"<of b>") == []


@pytest.mark.parametrize("transacted", [False, True])
def test_what_a_restore_has_undone_is_waited_for(
    tmp_path: Path, url: str, clock: Clock, days: Any, transacted: bool
) -> None:
    """Its objects lie beyond the end of the restored log; another restore to a time could bring them back."""
    settings = stepwise(offload={"after": "1h", "tail_interval": "1s"}, local_retention={"age": "1h"})

    def append(store: Any, value: bytes, key: str) -> None:
        if transacted:
            with store.transaction() as transaction:
                transaction.append("t", value, key=key)
        else:
            store.topic("t").append(value, key=key)
        store.topic("t").publish()

    with open_store(tmp_path / "old", url, clock, settings=settings) as store:
        topic = store.create_topic("t")
        append(store, b"first", "a")
        # What is undone begins with an object of its own.
        topic.roll()
        clock.advance(2 * 3600)
        store.tier()
        moment = clock() // 1000
        clock.advance(60)
        # A restore takes over the first object of the transaction log that is later, but not the second one.
        append(store, b"undone", "a")
        append(store, b"<of b>", "b")
        topic.erase(["b"])
        store.tier()
    with tiered.restore(url, tmp_path / "new", settings=settings, host=Host(clock=clock), at=moment) as store:
        shutil.rmtree(tmp_path / "old")
        assert store.topic("t").offsets()[0].end == 1
        for _ in range(2):
            store.tier()
        (erasure,) = store.erasures()
        assert files_with(tmp_path, b"<of b>")
        assert erasure.state == "sweeping"
        assert "; a sweep deletes it" in erasure.waits_for or "; a pass deletes it" in erasure.waits_for
        append(store, b"later", "b")
        run_passes(store, clock, days)
        assert [(x.state, x.waits_for) for x in store.erasures()] == [("done", "")]
        assert store.topic("t").scan(columns=["value"]).to_arrow()["value"].to_pylist() == [
            b"first",
            b"later",
        ]
        assert files_with(tmp_path, b"<of b>") == []


def test_what_lies_in_an_object_behind_the_horizon_stays(
    store: tiered.Store, clock: Clock, days: Any
) -> None:
    """A restore may lower a horizon into an object."""
    topic = fill_named(store, 1)
    topic.erase(["b"])
    store.context.erasures.change(lambda known: (replace(known[0], horizons=(5,)),))
    run_passes(store, clock, days)
    assert [x.state for x in store.erasures()] == ["done"]
    assert numbers_named(topic) == [0, 2, 3, 5, 6, 7, 8, 9]


def test_rows_of_transactions_are_searched_for_in_their_log(
    store: tiered.Store, tmp_path: Path, clock: Clock, days: Any
) -> None:
    """The log has them once more, here and in the bucket."""
    topic = store.create_topic("t")
    with store.transaction() as transaction:
        transaction.append("t", b"<of b> 1", key="b")
        transaction.append("t", b"<of a> 1", key="a")
    topic.roll()
    with pytest.MonkeyPatch.context() as patch:
        # The log is as long as if its transactions were not published yet.
        patch.setattr(type(store.context.commits), "shorten_log", lambda self, offset: None)
        erasure = topic.erase(["b"])
        run_passes(store, clock, days)
        assert erasure.state == "sweeping"
        assert "the transaction log begins at offset 0" in erasure.waits_for
        assert files_with(tmp_path / "data", b"<of b>")
    for _ in range(4):
        clock.advance(3 * 3600)
        store.tier()
    assert "may hold rows of old transactions; a sweep deletes it" in erasure.waits_for
    run_passes(store, clock, days)
    assert erasure.state == "done"
    assert files_with(tmp_path, b"<of b>") == []
    assert numbers_named(topic) == [1]


def test_a_file_of_a_repair_a_copy_and_a_request_to_a_writer_hold_nothing(
    tmp_path: Path, url: str, clock: Clock, days: Any
) -> None:
    promoting = stepwise(
        offload={"after": "0s", "tail_interval": "off"}, local_retention={"age": "1h"}, promote={"reads": 1}
    )
    with open_store(tmp_path / "data", url, clock, settings=promoting) as store:
        topic = fill_named(store)
        store.tier()
        clock.advance(2 * 3600)
        store.tier()
        (tmp_path / "data/topics/t/0/.damaged-0.log-1").write_bytes(b"<of b> of once")
        copies = store.context.tiers.copies
        manifest = store.context.tiers.cold(topic.meta, 0)
        for entry in manifest.entries(manifest.load().head):
            key = manifest.keys.data(entry.name)
            copies.write(key, [manifest.store.get(key).data])
        assert files_with(tmp_path / "data", b"<of b>")[0].startswith("promoted/")
        topic.erase(["b"])
        report = store.tier()
        assert "erase" in [action.kind for action, _ in report.done]
        assert not [name for name in files_with(tmp_path / "data", b"<of b>") if "promoted" in name]
        run_passes(store, clock, days)
        assert [x.state for x in store.erasures()] == ["done"]
        assert files_with(tmp_path, b"<of b>") == []
        assert not list((tmp_path / "data/erasures").iterdir())
        assert not list((tmp_path / "bucket").glob("erasures/*"))


def test_a_table_from_before_is_waited_for(tmp_path: Path, url: str, clock: Clock, days: Any) -> None:
    """Its manifests have the bounds of columns; nobody publishes it any more."""
    pytest.importorskip("pyiceberg")
    schema = pa.schema([("user", pa.string())])
    offload = {"after": "0s", "tail_interval": "off"}
    with open_store(
        tmp_path / "data", url, clock, settings=stepwise(offload=offload, table={"every": "1m"})
    ) as store:
        topic = store.create_topic("t", schema=schema, key="user")
        for user in ("ann", "zoe-of-z"):
            topic.append({"user": user})
        topic.roll()
        store.tier()
    assert [name for name in files_with(tmp_path / "bucket", b"zoe-of-z") if "table/" in name]
    with open_store(tmp_path / "data", url, clock, settings=stepwise(offload=offload)) as store:
        erasure = store.topic("t").erase(["zoe-of-z"])
        run_passes(store, clock, days)
        assert erasure.state == "sweeping"
        assert (
            "the table is not published any more: set table.every, or delete its folder" in erasure.waits_for
        )
        shutil.rmtree(next((tmp_path / "bucket").glob("t/*/table")))
        run_passes(store, clock, days)
        assert erasure.state == "done"
    assert files_with(tmp_path, b"zoe-of-z") == []


def test_a_table_of_a_clock_that_was_ahead_keeps_no_objects_until_then(
    tmp_path: Path, url: str, clock: Clock, days: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its snapshots may have no earlier time than the last one, and seemed to be of now for years."""
    pytest.importorskip("pyiceberg")
    monkeypatch.setattr(table_passes, "HEADS_SECONDS", 0.0)
    settings = stepwise(offload={"after": "0s", "tail_interval": "off"}, table={"every": "1m"})
    schema = pa.schema([("user", pa.string())])
    with open_store(tmp_path / "data", url, clock, settings=settings) as store:
        topic = store.create_topic("t", schema=schema, key="user")
        for user in ("ann", "zoe-of-z"):
            topic.append({"user": user})
        clock.advance(40 * 365 * 86400)
        topic.roll()
        store.tier()
        clock.advance(-40 * 365 * 86400)
        erasure = topic.erase(["zoe-of-z"])
        for _ in range(8):
            for path in (tmp_path / "bucket").glob("t/*/table/metadata/*"):
                os.utime(path, (path.stat().st_atime - 2, path.stat().st_mtime - 2))
            clock.advance(3600)
            store.tier()
            days(2)
            store.sweep()
        assert (erasure.state, erasure.waits_for) == ("done", "")
        assert store.verify(deep=True).problems == ()
    assert files_with(tmp_path, b"zoe-of-z") == []


def test_only_objects_with_a_hit_are_written_again(store: tiered.Store, url: str, clock: Clock) -> None:
    """And what is written is no more than they had."""
    topic = store.create_topic("t")
    for part in range(5):
        for number in range(50):
            topic.append(os.urandom(1000), key="rare" if (part, number) in ((1, 7), (3, 0)) else f"k{number}")
        topic.roll()
    clock.advance(3 * 3600)
    store.tier()
    cold = PartitionManifest(open_object_store(url), "t", topic.meta.topic_id, 0)
    before = cold.entries(cold.load().head)
    topic.erase(["rare"])
    (done,) = [item for item in store.tier().done if item[0].kind == "erase"]
    after = cold.entries(cold.load().head)
    assert [a.name == b.name for a, b in zip(before, after, strict=True)] == [True, False, True, False, True]
    assert done[1] == after[1].bytes + after[3].bytes <= 1.1 * (before[1].bytes + before[3].bytes)


SPOILT: dict[str, Any] = {
    "no values": lambda entry, folder: next(folder.glob("erasures/*")).unlink(),
    "other bytes as values": lambda entry, folder: next(folder.glob("erasures/*")).write_bytes(b"\xff" * 99),
    "values of another type": lambda entry, folder: next(folder.glob("erasures/*")).write_bytes(
        encode_values(pa.array([1, 2]))
    ),
    "an unknown column": lambda entry, folder: entry.update(column="nope"),
    "a horizon that is none": lambda entry, folder: entry.update(horizons=[-1]),
    "a number that is text": lambda entry, folder: entry.update(number="1"),
    "a missing field": lambda entry, folder: entry.pop("reason"),
    "a list in place of an entry": lambda entry, folder: entry.clear(),
}


@pytest.mark.parametrize("name", SPOILT)
def test_a_ledger_that_others_wrote_into_the_bucket_ends_no_pass(
    tmp_path: Path, url: str, clock: Clock, name: str
) -> None:
    """A new host learns of erasures from there; what is wrong is an error of the pass, and the rest of it is done."""
    with open_store(tmp_path / "old", url, clock, settings=SETTINGS) as store:
        fill_named(store, 1).erase(["b"])
        store.tier()
    ledger = tmp_path / "bucket" / "erasures.json"
    values = document.decode_document(ledger.read_bytes(), where="")
    SPOILT[name](values["erasures"][0], tmp_path / "bucket")
    ledger.write_bytes(document.encode_document(values))
    (tmp_path / "old").rename(tmp_path / "aside")
    try:
        store = tiered.restore(url, tmp_path / "new", settings=SETTINGS, host=Host(clock=clock))
    except tiered.CorruptionError as error:
        assert "ledger of erasures does not decode" in str(error)  # noqa: PT017
        return
    with store:
        store.topic("t").append(b"<of c> 99", key="c")
        store.topic("t").roll()
        clock.advance(3 * 3600)
        report, problems = store.tierer.run_once()
        assert "offload" in [action.kind for action, _ in report.done]
        assert [type(error) for error in problems] == [tiered.CorruptionError]
        assert [erasure.state for erasure in store.erasures()] == ["rewriting"]


def test_files_of_a_deletion_that_was_killed_go_before_the_end(
    tmp_path: Path, url: str, clock: Clock, days: Any
) -> None:
    """A daemon alone carries the erasure out: no writer opens the store, which would remove them."""
    topics = tmp_path / "data" / "topics"
    with open_store(tmp_path / "data", url, clock, settings=SETTINGS) as store:
        fill_named(store).erase(["b"])
        store.flush()
        shutil.copytree(topics / "t", topics / ".deleted-of-a-killed-process")
        store.delete_topic("t")
    with open_store(tmp_path / "data", url, clock, settings=SETTINGS, tierer=True) as daemon:
        run_passes(daemon, clock, days)
        assert [item.state for item in daemon.erasures()] == ["done"]
    assert files_with(tmp_path, b"<of b>") == []


def test_a_deletion_that_cannot_be_finished_is_waited_for(
    tmp_path: Path, url: str, clock: Clock, days: Any
) -> None:
    """Its files have records of the topic, and its document is damaged, so that nobody knows of which topic they are."""
    topics = tmp_path / "data" / "topics"
    deleting = topics / ".deleting-of-a-killed-process"
    with open_store(tmp_path / "data", url, clock, settings=SETTINGS) as store:
        erasure = fill_named(store).erase(["b"])
        shutil.copytree(topics / "t", deleting)
        (deleting / "topic.json").write_bytes(b"damaged")
        for _ in range(4):
            with suppress(tiered.TieredError):
                store.tier()
            clock.advance(3600)
            days(2)
            with suppress(tiered.TieredError):
                store.sweep()
        assert erasure.state == "sweeping"
        assert erasure.waits_for.startswith("the deletion of topic ")
        assert erasure.waits_for.endswith(" is not finished")
        shutil.rmtree(deleting)
        run_passes(store, clock, days)
        assert erasure.state == "done"
    assert files_with(tmp_path, b"<of b>") == []


def test_files_of_a_deleted_topic_that_cannot_be_removed_are_waited_for(
    tmp_path: Path, url: str, clock: Clock, days: Any
) -> None:
    topics = tmp_path / "data" / "topics"
    half = topics / ".deleted-of-a-killed-process"
    broken = True

    def refuse(operation: str, path: Path) -> None:
        if broken and operation == "unlink" and half in path.parents:
            raise OSError(errno.EIO, "input/output error", str(path))

    host = Host(clock=clock, fs=FailingDisk(refuse))
    with tiered.open(tmp_path / "data", cold=url, settings=SETTINGS, host=host) as store:
        erasure = fill_named(store).erase(["b"])
        shutil.copytree(topics / "t", half)
        try_passes(store, clock, days)
        expected = f"{half} has files of a deleted topic; a pass deletes them"
        assert (erasure.state, erasure.waits_for) == ("sweeping", expected)
        broken = False
        run_passes(store, clock, days)
        assert erasure.state == "done"
    assert files_with(tmp_path, b"<of b>") == []


def test_a_writer_that_has_not_forgotten_its_blocks_is_waited_for(
    tmp_path: Path, url: str, clock: Clock, days: Any
) -> None:
    """It is in another process, and looks for requests once an hour here."""
    with (
        open_store(tmp_path / "data", url, clock, settings=SETTINGS) as writer,
        open_store(tmp_path / "data", url, clock, settings=SETTINGS, tierer=True) as daemon,
    ):
        topic = fill_named(writer)
        erasure = topic.erase(["b"])
        run_passes(daemon, clock, days)
        expected = "the writer of t/0, another process, has not taken its request yet"
        assert (erasure.state, erasure.waits_for) == ("sweeping", expected)
        serve_requests(topic.opened.writer(0), lambda _: None)
        run_passes(daemon, clock, days)
        assert (erasure.state, erasure.waits_for) == ("done", "")
    assert files_with(tmp_path, b"<of b>") == []
