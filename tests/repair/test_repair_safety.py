"""Where one thing is damaged beside another, or nothing is, a repair does not make the good copy the lost one."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pyarrow as pa
import pytest

import tiered
from tests.repair.repairs import access_of, check_whole, done, repair, spoil
from tests.support.clock import Clock
from tests.support.damage import Damage, cut, flipped, missing
from tests.support.store_history import History, State, state_of
from tests.support.stores import OFFLOAD_US, evict_all, open_store, stepwise, tier
from tests.support.verified_store import Place, segment_parts
from tiered.cold.manifest.store_documents import DELETE_AGAIN, DELETED_IN_BUCKET
from tiered.cold.object_store.file_store import FileStore
from tiered.errors import ColdStorageError, CorruptionError, PreconditionFailed
from tiered.format import manifest_changes
from tiered.format.manifest_codec import decode_head, encode_head
from tiered.format.schema import RECORD_SCHEMA
from tiered.reader.same_log import segment_rows
from tiered.repair.repair import repair_store
from tiered.repair.segments import _encode_segment
from tiered.warm.partition_directory import read_fence, read_lineage, read_start_offset
from tiered.warm.segment_reader import SegmentFile


def refusals(place: Place, **options: Any) -> list[str]:
    """Repair, which must not do anything; return why."""
    report = repair(place, **options)
    assert {item.result for item in report.repairs} == {"refused"}
    return [item.why for item in report.repairs]


def fill(store: tiered.Store, segments: int) -> tiered.Topic:
    topic = store.create_topic("orders")
    for number in range(segments):
        topic.append_many([b"%d-%d" % (number, i) for i in range(10)])
        topic.roll()
    return topic


@pytest.fixture
def own(tmp_path: Path, clock: Clock) -> Place:
    """A closed store of three segments, each of them also in the bucket."""
    store = open_store(tmp_path / "data", f"file://{tmp_path}/bucket", clock)
    fill(store, 3)
    tier(store, clock, OFFLOAD_US)
    store.close()
    return Place(tmp_path, {0: []})


# -- two at once -----------------------------------------------------------------------------------


def test_a_start_offset_is_not_guessed_from_the_pages_that_are_left(place: Place) -> None:
    """The log begins on a damaged page: a start after it would let the next pass delete what the page names."""
    spoil(place.partition() / "start.json", flipped(10))
    for page in (place.cold() / "pages").iterdir():
        spoil(page, flipped(40))
    check_whole(place, repair(place))
    assert read_start_offset(place.partition()) == 5


@pytest.mark.parametrize("damage", [flipped(20), missing], ids=["bit", "missing"])
def test_a_start_offset_is_not_guessed_without_the_bucket(place: Place, damage: Damage) -> None:
    """Nobody knows where the bucket is: what is on this disk alone is not all of the log."""
    spoilt = spoil(place.partition() / "start.json", cut(9))
    spoil(place.data / "cold.json", damage)
    assert any("the bucket, which may have" in why for why in refusals(place))
    assert (place.partition() / "start.json").read_bytes() == spoilt
    assert repair(place, url=f"file://{place.bucket}").problems == ()
    assert read_start_offset(place.partition()) == 5


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (cut(700), "cannot be read, and no other object holds what it did"),
        (missing, "0 to 10 are in no object"),
    ],
    ids=["cut", "missing"],
)
def test_a_head_is_not_rebuilt_without_the_first_object(
    own: Place, clock: Clock, damage: Damage, why: str
) -> None:
    """Its start would lie after records that this disk has, and the next pass would delete them here."""
    spoil(own.objects()[0], damage)
    spoil(own.cold() / "head.json", missing)
    assert why in refusals(own, rebuild_manifest=True)[0]
    with open_store(own.data, None, clock) as store:
        with pytest.raises(CorruptionError, match="head.json was published"):
            store.tier((clock() + OFFLOAD_US) // 1000)
        assert "head.json was published and is missing" in store.status().partitions[0].problem
        assert store.topic("orders").scan().to_arrow().num_rows == 30
    if damage is missing:
        with open_store(own.data, None, clock) as store:
            store.topic("orders").delete_before(10)
        assert len(done(repair(own, rebuild_manifest=True))) == 1


def test_a_head_is_not_rebuilt_without_the_last_object(own: Place, tmp_path: Path, clock: Clock) -> None:
    """It would end before the log did: a restore from it would give the lost offsets to other records."""
    with open_store(own.data, None, clock) as store:
        evict_all(store, clock)
    spoil(own.objects()[-1], missing)
    spoil(own.cold() / "head.json", missing)
    (why,) = refusals(own, rebuild_manifest=True)
    assert "offsets 20 to 30 are in no object and in no local file" in why
    with open_store(own.data, None, clock) as store:
        store.topic("orders").delete_before(30)
    assert len(done(repair(own, rebuild_manifest=True))) == 1
    with tiered.restore(f"file://{own.bucket}", tmp_path / "new", settings=stepwise()) as store:
        assert store.topic("orders").append(b"v", sync=True).offset == 30


def test_a_rebuilt_head_may_end_where_local_files_begin(own: Place, clock: Clock) -> None:
    """The disk still has what the last object had, and ships it again."""
    spoil(own.objects()[-1], missing)
    spoil(own.cold() / "head.json", missing)
    assert len(done(repair(own, rebuild_manifest=True))) == 1
    with open_store(own.data, None, clock) as store:
        evict_all(store, clock)
        assert store.topic("orders").scan().to_arrow().num_rows == 30


def test_a_head_rebuilt_beside_a_column_that_no_object_has_can_be_restored(
    tmp_path: Path, clock: Clock
) -> None:
    """The bucket hears of the column with the next upload; until then its manifest must not speak of it."""
    place = Place(tmp_path, {0: []})
    with open_store(place.data, f"file://{place.bucket}", clock) as store:
        topic = store.create_topic("t", schema=pa.schema([("a", pa.int64())]))
        topic.append({"a": 1})
        topic.roll()
        tier(store, clock, OFFLOAD_US)
        topic.add_columns(pa.schema([("b", pa.int64())]))
        topic.append({"a": 2, "b": 2})
    for head in manifest_files(place, "head.json"):
        spoil(head, missing)
    assert len(done(repair(place, rebuild_manifest=True))) == 1
    with tiered.restore(f"file://{place.bucket}", tmp_path / "restored") as restored:
        assert [record.value for record in restored.topic("t").read()] == [{"a": 1}]


def test_a_lost_head_and_a_lost_start_offset_are_made_good_one_by_the_other(place: Place) -> None:
    spoil(place.cold() / "head.json", missing)
    spoil(place.partition() / "start.json", cut(9))
    report = repair(place, rebuild_manifest=True)
    assert len(done(report)) == 2
    check_whole(place, report)


def test_a_page_is_made_again_beside_a_segment_that_cannot_be(place: Place) -> None:
    path = place.segments()[2]
    spoil(path, flipped(segment_parts(path)["header"][0] + 9))
    spoil(min((place.cold() / "pages").iterdir()), flipped(40))
    assert [item.where for item in repair(place).problems] == [str(path)]


@pytest.fixture
def undone(tmp_path: Path) -> Iterator[tuple[Place, State]]:
    """A log that went back, went on, and went back to what it had been before that; what the bucket has of it."""
    with patch.object(manifest_changes, "INLINE_ENTRIES_MAX", 1):
        history = History(tmp_path)
        for _ in range(3):
            history.append()
            history.seal()
            history.look()
        (first, _), *_, (last, _) = history.seen
        for at_us in (first, last):
            history.restore(at_us)
            for _ in range(2):
                history.append()
                history.seal()
                history.look()
        history.store.close()
        (tmp_path / "data").symlink_to(tmp_path / f"store-{history.stores}")
        return Place(tmp_path, {}), history.seen[-1][1]


def manifest_files(place: Place, name: str) -> list[Path]:
    return list(place.bucket.glob(f"t/*/*/{name}"))


def test_a_page_is_made_again_without_what_a_restore_undid(undone: tuple[Place, State]) -> None:
    """The objects of the lineage that was undone are of a higher epoch, and are there until a sweep."""
    place, expected = undone
    for page in manifest_files(place, "pages/*"):
        spoil(page, flipped(40))
    assert repair(place).problems == ()
    with tiered.open(f"file://{place.bucket}") as bucket:
        assert state_of(bucket) == expected


def test_a_head_is_not_rebuilt_where_lineages_hold_the_same_offsets(undone: tuple[Place, State]) -> None:
    place, _ = undone
    for head in manifest_files(place, "head.json"):
        spoil(head, missing)
    assert all("which one was undone is not known" in why for why in refusals(place, rebuild_manifest=True))
    assert manifest_files(place, "head.json") == []


@pytest.fixture
def rewound(tmp_path: Path) -> tuple[Place, History]:
    """A log that went back, also to its start, and on beyond where it had been; what was undone is there until a sweep."""
    history = History(tmp_path)
    for count in (0, 1, 0):
        history.delete(count)
        history.append()
        history.seal()
        history.look()
    at_us, _ = history.seen[0]
    history.restore(at_us)
    history.clock.advance(60)
    for _ in range(3):
        history.append()
        history.seal()
        history.look()
    history.store.close()
    (tmp_path / "data").symlink_to(tmp_path / f"store-{history.stores}")
    return Place(tmp_path, {}), history


def test_a_rebuilt_head_knows_which_lineage_wrote_what(rewound: tuple[Place, History]) -> None:
    """No later restore to a time may take what was undone for a part of the log."""
    place, history = rewound
    before = [decode_head(path.read_bytes(), where="") for path in manifest_files(place, "head.json")]
    for head in manifest_files(place, "head.json"):
        spoil(head, missing)
    report = repair_store(access_of(place), rebuild_manifest=True, clock=history.clock)
    assert len(done(report)) == 2
    assert all("the history of earlier restores" in item.why for item in done(report))
    after = [decode_head(path.read_bytes(), where="") for path in manifest_files(place, "head.json")]
    for old, new in zip(before, after, strict=True):
        assert new.lineages[1:] == old.lineages[1:]
        assert [epoch for epoch, _ in new.rewinds] == [epoch for epoch, _ in old.rewinds]
    for moment_us, expected in history.seen:
        with history.elsewhere(moment_us) as store:
            assert state_of(store) == expected


def test_a_head_is_not_rebuilt_with_undone_records_for_lost_ones(rewound: tuple[Place, History]) -> None:
    """An object is lost, and an undone one has the same offsets; the next one says that it does not follow it."""
    place, history = rewound
    with open_store(place.data, None, history.clock) as store:
        evict_all(store, history.clock)
    for head in manifest_files(place, "head.json"):
        newest = decode_head(head.read_bytes(), where="")
        lost = next(entry for entry in newest.inline if entry.base_offset == newest.lineages[-1][1])
        (head.parent / "data" / lost.name).unlink()
        head.unlink()
    assert all("does not follow" in why for why in refusals(place, rebuild_manifest=True))


@pytest.mark.parametrize("damaged", [False, True], ids=["sound", "damaged"])
def test_a_rebuilt_head_leaves_out_what_a_restore_undid_that_wrote_nothing_since(
    tmp_path: Path, damaged: bool
) -> None:
    """The newest file alone tells where its lineage began, damaged or not."""
    history = History(tmp_path)
    history.append()
    history.ship()
    history.look()
    history.append()
    history.seal()
    history.look()
    history.restore(history.seen[0][0])
    history.look()
    history.store.close()
    (tmp_path / "data").symlink_to(tmp_path / f"store-{history.stores}")
    place = Place(tmp_path, {})
    for head in manifest_files(place, "head.json"):
        spoil(head, missing)
    for newest in (tmp_path / "data").rglob("*.log") if damaged else ():
        spoil(newest, flipped(9))
    assert len(done(repair_store(access_of(place), rebuild_manifest=True, clock=history.clock))) == 2
    with tiered.open(history.url) as bucket:
        assert state_of(bucket) == history.seen[-1][1]
    for moment_us, expected in history.seen if not damaged else ():
        with history.elsewhere(moment_us) as store:
            assert state_of(store) == expected


def test_a_rebuilt_head_does_not_begin_where_an_undone_deletion_did(tmp_path: Path) -> None:
    """The start offset is damaged too: the objects tell it, but for those that the restore undid."""
    history = History(tmp_path)
    history.append(3)
    history.delete(1)
    history.seal()
    history.look()
    history.delete(2)
    history.append()
    history.seal()
    history.restore(history.seen[0][0])
    history.store.close()
    (tmp_path / "data").symlink_to(tmp_path / f"store-{history.stores}")
    place = Place(tmp_path, {})
    for path in (*manifest_files(place, "head.json"), *(tmp_path / "data").rglob("start.json")):
        spoil(path, cut(9))
    repair_store(access_of(place), rebuild_manifest=True, clock=history.clock)
    with tiered.open(history.url) as bucket:
        assert state_of(bucket) == history.seen[0][1]


def test_a_head_is_not_rebuilt_of_records_that_go_back_to_an_older_lineage(tmp_path: Path) -> None:
    """No local file is left to tell that they were undone; what went on in their place is."""
    history = History(tmp_path)
    for _ in range(3):
        history.append(1)
        history.seal()
        history.look()
    history.restore(history.seen[0][0])
    history.append(1)
    history.ship()
    history.store.close()
    (tmp_path / "data").symlink_to(tmp_path / f"store-{history.stores}")
    place = Place(tmp_path, {})
    for path in (*manifest_files(place, "head.json"), *(tmp_path / "data").rglob("*.log")):
        spoil(path, missing)
    report = repair_store(access_of(place), rebuild_manifest=True, clock=history.clock)
    whys = [item.why for item in report.repairs if item.where.endswith("head.json")]
    assert ["which had undone it" in why for why in whys] == [True, True]
    assert manifest_files(place, "head.json") == []


# -- nothing damaged -------------------------------------------------------------------------------


def test_the_bucket_of_another_store_is_left_alone(own: Place, tmp_path: Path, clock: Clock) -> None:
    """A wrong --cold: its store.json is sound, and its topic of our topic's name is not our topic."""
    with open_store(tmp_path / "other" / "data", None, clock) as store:
        fill(store, 1)
    content = (own.bucket / "store.json").read_bytes()
    whys = refusals(Place(tmp_path / "other", {}), rebuild_manifest=True, url=f"file://{own.bucket}")
    assert whys == [
        "it is sound, and differs from the local store's document",
        "it is no topic's of this store",
    ]
    assert (own.bucket / "store.json").read_bytes() == content


def test_a_tombstone_is_not_overwritten(own: Place, tmp_path: Path, clock: Clock) -> None:
    """A deletion was cut short, or the disk is an old image: the topic stays deleted."""
    shutil.copytree(own.data, tmp_path / "image")
    with open_store(own.data, None, clock) as store:
        store.delete_topic("orders")
    shutil.rmtree(own.data)
    (tmp_path / "image").rename(own.data)
    (why,) = refusals(own)
    assert DELETED_IN_BUCKET in why
    assert DELETE_AGAIN.format(name="orders") in why
    assert b"deleted_us" in next(own.bucket.glob("orders/*/topic.json")).read_bytes()


def test_an_object_that_differs_from_a_sound_segment_is_not_replaced(own: Place) -> None:
    """Both verify, so nobody knows which is right."""
    segment = SegmentFile.open(own.segments()[0], use_mmap=False)
    assert segment.facts is not None

    def rows() -> Iterator[pa.RecordBatch]:
        for batch in segment_rows(segment, RECORD_SCHEMA, 0, 10):
            other = pa.array([b"other"] * batch.num_rows, pa.binary())
            yield batch.set_column(1, batch.schema.field(1), other)

    parts = [
        bytes(part) for block in _encode_segment(segment.header, segment.facts, rows()) for part in block
    ]
    own.segments()[0].write_bytes(b"".join(parts))
    objects = own.objects()
    assert refusals(own) == ["nothing safe can be done"]
    assert own.objects() == objects


def test_a_disk_that_a_restore_left_behind_stays_of_its_lineage(own: Place, tmp_path: Path) -> None:
    """The head of the store that went on was lost and rebuilt; by an early release, it knows of one lineage alone."""
    new = Place(tmp_path / "new", {})
    tiered.restore(f"file://{own.bucket}", new.data, settings=stepwise()).close()
    spoil(own.cold() / "head.json", missing)
    assert len(done(repair(new, rebuild_manifest=True))) == 1
    assert repair(own).repairs == ()
    path = own.cold() / "head.json"
    head = decode_head(path.read_bytes(), where="")
    path.write_bytes(encode_head(replace(head, lineages=head.lineages[1:], origins=())))
    assert any("it is sound" in why for why in refusals(own))
    assert read_lineage(own.partition()) == 1
    assert read_fence(own.partition()) is None


# -- a lost answer ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [ColdStorageError("timed out", retryable=True), PreconditionFailed("a repetition met it")],
    ids=["timeout", "412"],
)
def test_a_document_whose_put_was_not_answered_is_read_back(
    own: Place, monkeypatch: pytest.MonkeyPatch, error: ColdStorageError
) -> None:
    put: Callable[..., str] = FileStore.put

    def unanswered(self: FileStore, key: str, data: bytes, **conditions: Any) -> str:
        etag = put(self, key, data, **conditions)
        if key == "store.json":
            raise error
        return etag

    content = (own.bucket / "store.json").read_bytes()
    spoil(own.bucket / "store.json", cut(20))
    monkeypatch.setattr(FileStore, "put", unanswered)
    report = repair(own)
    assert [item.result for item in report.repairs] == ["done"]
    assert (own.bucket / "store.json").read_bytes() == content
