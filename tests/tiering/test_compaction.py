"""Compaction, step by step: what goes, what stays for a restore, and who is refused."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiered
from tests.support.clock import Clock
from tests.support.stores import HOUR_US, handle_of, open_store, stepwise
from tiered.cold.fetch import object_reader
from tiered.cold.upkeep.inspect import read_facts
from tiered.cold.upkeep.rebuild import plan_rebuild
from tiered.engine.host import Host
from tiered.errors import ColdStorageError, ConfigError, CorruptionError, UnsupportedFormat
from tiered.format import document, latest
from tiered.format.document import decode_document
from tiered.format.manifest import Compaction
from tiered.policies.actions import Compact
from tiered.tiering import compact_actions

RULE = {"after": "1h", "dirty": 0.01, "keep_tombstones": "1d"}
SETTINGS = stepwise(
    offload={"after": "1h"}, local_retention={"age": "30d"}, compress={"after": "off"}, compact_keys=RULE
)


@pytest.fixture
def store(tmp_path: Path, url: str, clock: Clock) -> Iterator[Any]:
    with open_store(tmp_path / "data", url, clock, settings=SETTINGS) as found:
        yield found


def fill(store: tiered.Store, *segments: str) -> tiered.Topic:
    """A segment for each text: a record for each letter, its key. A capital is a tombstone, a dot has no key."""
    topic = store.create_topic("t", exist_ok=True)
    for letters in segments:
        for letter in letters:
            key = None if letter == "." else letter.lower()
            topic.append(None if letter.isupper() else letter.encode(), key=key)
        topic.roll()
    return topic


def passes(store: Any, clock: Clock, count: int = 3) -> list[list[str]]:
    kinds = []
    for _ in range(count):
        clock.advance(HOUR_US / 1e6)
        kinds.append([action.kind for action, _ in store.tier().done])
    return kinds


def text(topic: Any, **bounds: Any) -> str:
    """The log as `fill` writes it, with a space for a record that is gone."""
    rows = topic.scan(**bounds).to_arrow().to_pylist()
    letters = {
        row["offset"]: "." if row["key"] is None else row["key"].decode().upper() if row["value"] is None
        else row["key"].decode()
        for row in rows
    }  # fmt: skip
    log = topic.offsets()[0]
    return "".join(letters.get(offset, " ") for offset in range(log.start, log.end))


def head_of(store: Any) -> Any:
    loaded = handle_of(store, store.topic("t").meta, 0).manifest.load()
    assert loaded is not None
    return loaded.head


def local_files(path: Path) -> list[Path]:
    return sorted(path.glob("data/topics/t/0/*-?.log"))


def test_each_key_keeps_its_latest_record(store: Any, tmp_path: Path, clock: Clock) -> None:
    topic = fill(store, "aab.b", "cac.d", "e")
    assert passes(store, clock) == [["offload"] * 3, ["compact"], []]
    assert text(topic) == "   .b" + " ac.d" + "e"
    assert topic.scan(latest=True).to_arrow().num_rows == 7
    assert head_of(store).compaction == Compaction(11, 11, 11, 11, clock() - HOUR_US)
    assert store.verify(deep=True).problems == ()
    assert [record.offset for record in topic.read(offset=0, limit=2)] == [3, 4]
    # The object without a superseded record was not written again, and its segment is still here.
    names = {entry.base_offset: entry for entry in head_of(store).inline}
    assert [entry.record_count for entry in names.values()] == [2, 4, 1]
    assert [path.name[:20] for path in local_files(tmp_path)] == ["0" * 18 + "10", "0" * 18 + "11"]
    # A key that is appended again: its record before goes.
    fill(store, "ax")
    passes(store, clock)
    assert text(topic) == "   .b" + "  c.d" + "e" + "ax"


def test_tombstones_go_once_nothing_older_is_left(store: Any, clock: Clock, days: Any) -> None:
    topic = fill(store, "ab", "Ac")
    passes(store, clock)
    assert text(topic) == " bAc"
    clock.advance(86_400)
    # The object with the older record is still kept for the grace: a restore could take it.
    assert [action.kind for action, _ in store.tier().done if action.kind != "sweep"] == ["compact"]
    assert text(topic) == " bAc"
    days(2)
    store.sweep()
    passes(store, clock, 1)
    assert text(topic) == " b c"
    # Nothing more is due, for days.
    for _ in range(3):
        clock.advance(86_400)
        assert "compact" not in {action.kind for action, _ in store.tier().done}
    assert store.verify(deep=True).problems == ()


def test_of_tombstones_that_may_not_go_yet_none_goes_in_a_later_pass(
    store: Any, clock: Clock, days: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sweep comes between the passes of one compaction; all tombstones wait for the next one."""
    topic = fill(store, "aA", "Bc")
    passes(store, clock)
    clock.advance(86_400)
    monkeypatch.setattr(compact_actions, "PASS_BYTES", 1)
    passes(store, clock, 1)
    assert head_of(store).compaction == replace(
        head_of(store).compaction, clean_offset=4, next_offset=2, removed_offset=0
    )
    days(2)
    store.sweep()
    passes(store, clock, 1)
    assert text(topic) == " ABc"
    passes(store, clock, 2)
    assert text(topic) == "   c"


def test_a_younger_tombstone_stays(store: Any, clock: Clock, days: Any) -> None:
    topic = fill(store, "ab", "A")
    passes(store, clock)
    clock.advance(86_400)
    fill(store, "B")
    days(2)
    store.sweep()
    passes(store, clock, 4)
    assert text(topic) == "   B"
    assert head_of(store).compaction.tombstone_offset == 4


def test_of_an_object_the_tombstones_before_an_offset_go(store: Any, clock: Clock) -> None:
    topic = fill(store, "ABc")
    passes(store, clock)
    committer = store.tierer.claims.committer(handle_of(store, topic.meta, 0))
    committer.commit(lambda head: replace(head, compaction=Compaction(3, 3, 3, 1, 0)))
    passes(store, clock, 1)
    assert text(topic) == " Bc"


def test_a_tombstone_stays_if_the_head_is_another_one_than_planned(store: Any, clock: Clock) -> None:
    """As after a restore to a time, of which the objects are not compacted."""
    topic = fill(store, "aA")
    passes(store, clock, 1)
    compact(store, 2, tombstone_offset=2)
    assert text(topic) == " A"


def compact(store: Any, end_offset: int, **details: Any) -> None:
    """Compact as an action says that was planned on another head."""
    action = Compact(
        topic="t", partition=0, segment_id=None, base_offset=0, end_offset=end_offset, bytes=0, reason="a test",
        **details,
    )  # fmt: skip
    store.tierer.handlers[Compact](action)


def test_a_topic_without_tombstones_is_at_rest(tmp_path: Path, url: str, clock: Clock) -> None:
    with open_store(tmp_path / "data", url, clock, settings=SETTINGS) as store:
        topic = store.create_topic("t", schema=pa.schema([("id", pa.int64())]), key="id")
        for number in (1, 2, 1):
            topic.append({"id": number})
        topic.roll()
        passes(store, clock)
        assert head_of(store).compaction == Compaction(3, 3, 3)
        assert topic.scan(columns=["offset"]).to_arrow()["offset"].to_pylist() == [1, 2]


def test_a_shipped_tail_is_left_to_its_segment(store: Any, clock: Clock) -> None:
    """Also by an action that was planned before the segment was known."""
    topic = fill(store, "aa")
    passes(store, clock, 1)
    topic.append(b"a", key="a")
    topic.publish()
    compact(store, 3)
    assert text(topic) == "  a"
    assert [(entry.end_offset, entry.sealed) for entry in head_of(store).inline] == [(2, True), (3, False)]
    assert head_of(store).compaction.is_under_way
    passes(store, clock, 1)
    topic.roll()
    passes(store, clock)
    assert head_of(store).compaction.clean_offset == 3


def test_a_compaction_goes_on_with_all_keys_that_it_began_with(
    store: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their memory may be fuller by then, as the keys come in other batches."""
    topic = fill(store, "abcd", "abc")
    monkeypatch.setattr(compact_actions, "PASS_BYTES", 1)
    passes(store, clock, 2)
    assert text(topic) == "   dabc"
    assert head_of(store).compaction == Compaction(0, 7, 4)
    monkeypatch.setattr(latest, "KEYS_BYTES_MAX", 1)
    monkeypatch.setattr(latest, "_ROWS_MIN", 1)
    passes(store, clock, 1)
    assert head_of(store).compaction.clean_offset == 7


def test_a_range_ends_where_the_memory_for_keys_does(
    store: Any, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(latest, "KEYS_BYTES_MAX", 1)
    monkeypatch.setattr(latest, "_ROWS_MIN", 1)
    topic = fill(store, "ab", "ab", "ba")
    passes(store, clock, 2)
    assert head_of(store).compaction.clean_offset == 2
    passes(store, clock, 2)
    assert text(topic) == "    ba"


def test_a_merged_object_says_what_its_parts_lack(tmp_path: Path, url: str, clock: Clock) -> None:
    rules = {"merge": {"after": "1h", "target_bytes": "8KiB"}, "local_retention": {"age": "1h"}}
    settings = stepwise(offload={"after": "1h"}, **rules, compact_keys=RULE | {"dirty": 1.0})
    with open_store(tmp_path / "data", url, clock, settings=settings) as store:
        topic = fill(store, "ab", "a")
        passes(store, clock)
        fill(store, "c")
        passes(store, clock, 4)
        (entry,) = head_of(store).inline
        manifest = handle_of(store, topic.meta, 0).manifest
        assert text(topic) == " bac"
        assert read_facts(manifest.store, manifest.keys.data(entry.name)).facts.compacted_offset == 3


def test_a_restore_to_a_time_has_what_was_compacted_since(
    store: Any, tmp_path: Path, url: str, clock: Clock
) -> None:
    """The compacted object is older than that time, but not the records for which others went."""
    topic = fill(store, "abc")
    clock.advance(3 * 3600)
    store.tier()
    moment = clock() // 1000
    clock.advance(60)
    fill(store, "ab")
    passes(store, clock)
    assert text(topic) == "  cab"
    store.close()
    with tiered.restore(url, tmp_path / "then", at=moment, settings=SETTINGS, host=Host(clock=clock)) as then:
        assert text(then.topic("t")) == "abc"
        assert head_of(then).compaction is None
        fill(then, "c")
        passes(then, clock)
        assert text(then.topic("t")) == "ab c"


@pytest.mark.parametrize("swept", [False, True])
def test_a_restore_to_a_time_before_a_compaction_undoes_it(
    store: Any, tmp_path: Path, url: str, clock: Clock, days: Any, swept: bool
) -> None:
    """The log ended where it does now, and no record is younger than that time."""
    topic = fill(store, "abab", "cca")
    clock.advance(600)
    store.tier()
    clock.advance(3 * 3600)
    store.topic("t").publish()
    before = clock() // 1000
    clock.advance(60)
    passes(store, clock)
    assert text(topic) == "   b ca"
    after = clock() // 1000
    store.close()
    clock.advance(60)
    with tiered.restore(url, tmp_path / "now", at=after, settings=SETTINGS, host=Host(clock=clock)) as now:
        assert text(now.topic("t")) == "   b ca"
        if swept:
            days(2)
            now.sweep()
    with tiered.restore(url, tmp_path / "then", at=before, settings=SETTINGS, host=Host(clock=clock)) as then:
        # Without the objects that they were made from, the compacted ones have the latest of each key.
        assert text(then.topic("t")) == ("   b ca" if swept else "ababcca")


@pytest.mark.parametrize("typed", [False, True])
def test_records_with_an_empty_key_stay(store: Any, clock: Clock, typed: bool) -> None:
    schema = pa.schema([("key", pa.string()), ("value", pa.string())])
    topic = store.create_topic("t", **{"schema": schema, "key": "key"} if typed else {})
    kind = schema if typed else pa.schema([("key", pa.binary()), ("value", pa.binary())])
    for keys in (["", "a", ""], ["", None, "a", ""]):
        rows = {"key": keys, "value": ["1", "2", "3", "4"][: len(keys)]}
        topic.append_batch(
            pa.table({name: pa.array(found, kind.field(name).type) for name, found in rows.items()})
        )
        topic.roll()
    stays = [0, 2, 3, 4, 5, 6]

    def latest_offsets(opened: Any) -> list[int]:
        found: list[int] = opened.scan(latest=True, columns=["offset"]).to_arrow()["offset"].to_pylist()
        return found

    assert latest_offsets(topic) == stays
    if not typed:
        topic.append(None, key="")
        topic.roll()
        stays.append(7)
    assert ["compact"] in passes(store, clock)
    assert topic.scan(columns=["offset"]).to_arrow()["offset"].to_pylist() == stays
    with store.serve("127.0.0.1:0") as server, tiered.open(server.location) as remote:
        assert latest_offsets(topic) == latest_offsets(remote.topic("t")) == stays


def test_a_damaged_object_is_in_the_way_of_a_restore_to_before_it_was_compacted(
    store: Any, tmp_path: Path, url: str, clock: Clock
) -> None:
    topic = fill(store, "aab")
    clock.advance(HOUR_US / 1e6)
    store.tier()
    (original,) = (tmp_path / "bucket" / "t").rglob("*.parquet")
    moment = clock() // 1000
    passes(store, clock)
    assert text(topic) == " ab"
    store.close()
    original.write_bytes(b"damaged" * 100)
    with pytest.raises(CorruptionError, match=original.name):
        tiered.restore(url, tmp_path / "then", at=moment, settings=SETTINGS, host=Host(clock=clock))


def test_a_restore_to_a_time_says_what_it_lacks(
    store: Any, tmp_path: Path, url: str, clock: Clock, days: Any
) -> None:
    fill(store, "abc")
    clock.advance(3 * 3600)
    store.tier()
    moment = clock() // 1000
    clock.advance(60)
    fill(store, "ab")
    passes(store, clock)
    days(2)
    store.sweep()
    store.close()
    with pytest.raises(ColdStorageError, match="offsets 0 to 3 of .* as they were are in no object"):
        tiered.restore(url, tmp_path / "then", at=moment, settings=SETTINGS, host=Host(clock=clock))


def test_a_rebuilt_manifest_takes_the_older_object_if_the_later_records_are_lost(
    store: Any, tmp_path: Path, clock: Clock
) -> None:
    topic = fill(store, "abc", "ab")
    passes(store, clock)
    manifest = handle_of(store, topic.meta, 0).manifest
    head = head_of(store)
    first, second = head.inline
    assert read_facts(manifest.store, manifest.keys.data(first.name)).facts.compacted_offset == 5

    def plan() -> Any:
        return plan_rebuild(
            manifest,
            store_id=head.store_id,
            schemas=dict(enumerate(["", ""])),
            lineage_epoch=1,
            start_offset=0,
        )

    assert [entry.name for entry in plan().head.inline] == [first.name, second.name]
    assert plan().head.features == ("compaction",)
    manifest.store.delete([manifest.keys.data(second.name)])
    (only,) = plan().head.inline
    assert only.record_count == 3
    assert any(name == first.name and "are lost" in why for name, why in plan().left_out)


def test_nothing_is_compacted_behind_a_damaged_object(store: Any, tmp_path: Path, clock: Clock) -> None:
    topic = fill(store, "ab", "ab")
    clock.advance(HOUR_US / 1e6)
    store.tier()
    manifest = handle_of(store, topic.meta, 0).manifest
    path = tmp_path / "bucket" / manifest.keys.data(head_of(store).inline[0].name)
    data = bytearray(path.read_bytes())
    data[6] ^= 1
    path.write_bytes(bytes(data))
    clock.advance(HOUR_US / 1e6)
    ((_, error),) = store.tier().failed
    assert "fails its checksum" in str(error)
    assert "compact" not in {action.kind for action in store.plan().actions}
    assert text(topic) == "abab"  # the segments are still here


def test_a_record_stays_while_the_later_one_does_not_read(
    store: Any, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The keys of the later object are sound, and a value is not."""
    monkeypatch.setattr(object_reader, "SMALL_OBJECT_BYTES", 0)  # which are read whole
    topic = store.create_topic("t")
    topic.append(b"earlier", key="a")
    topic.roll()
    topic.append(b"later" * 2000, key="a")
    topic.roll()
    passes(store, clock, 1)
    first, second = head_of(store).inline
    manifest = handle_of(store, topic.meta, 0).manifest
    path = tmp_path / "bucket" / manifest.keys.data(second.name)
    data = bytearray(path.read_bytes())
    data[data.index(b"later")] ^= 1
    path.write_bytes(bytes(data))
    clock.advance(HOUR_US / 1e6)
    ((_, error),) = store.tier().failed
    assert "fails its checksum" in str(error)
    assert [entry.name for entry in head_of(store).inline] == [first.name, second.name]


def test_a_topic_with_compaction_keeps_its_partitions(store: Any) -> None:
    fill(store, "a")
    with pytest.raises(ConfigError, match="topic 't' is compacted"):
        store.topic("t").add_partitions(2)


def test_a_wrong_marker_of_deleted_keys_is_named(tmp_path: Path, url: str, clock: Clock) -> None:
    settings = stepwise(offload={"after": "1h"}, compact_keys=RULE | {"deleted": "gone"})
    with open_store(tmp_path / "data", url, clock, settings=settings) as store:
        topic = store.create_topic("t", schema=pa.schema([("id", pa.int64())]), key="id")
        topic.append({"id": 1})
        topic.roll()
        clock.advance(HOUR_US / 1e6)
        store.tier()
        clock.advance(HOUR_US / 1e6)
        ((_, error),) = store.tier().failed
        assert "compact_keys.deleted names 'gone', and topic 't' has no such column of booleans" in str(error)


def test_releases_without_compaction_refuse_the_store(
    store: Any, tmp_path: Path, url: str, clock: Clock
) -> None:
    fill(store, "aa")
    passes(store, clock)
    store.close()
    for place in (tmp_path / "data", tmp_path / "bucket"):
        assert decode_document((place / "store.json").read_bytes(), where="")["features"] == ["compaction"]
    with pytest.MonkeyPatch.context() as older:
        older.setattr(document, "KNOWN_FEATURES", frozenset({"transactions", "erasures"}))
        for place in (tmp_path / "data", url):
            with pytest.raises(UnsupportedFormat, match="compaction"):
                tiered.open(place, settings=SETTINGS).topic("t").scan().to_arrow()
        with pytest.raises(UnsupportedFormat, match="compaction"):
            tiered.restore(url, tmp_path / "new", settings=SETTINGS)
    shutil.rmtree(tmp_path / "data")
    with tiered.restore(url, tmp_path / "new", settings=SETTINGS, host=Host(clock=clock)) as restored:
        assert text(restored.topic("t")) == " a"
