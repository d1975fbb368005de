"""The live table follows the heads of its topic; what interrupts a commit never breaks it."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import tiered
from tests.support.clock import Clock
from tests.support.faulty_store import FaultyStore
from tests.support.stores import OFFLOAD_US, open_store, stepwise, tier
from tests.support.table_reader import (
    check_rows,
    check_whole,
    folder_of,
    load,
    newest,
    offsets,
    path_of,
    rows,
)
from tests.table.place import DAY, Place
from tiered.cold.manifest.partition_manifest import PartitionManifest
from tiered.errors import ColdStorageError, ConfigError, CorruptionError
from tiered.table import live_table, table_manifests, table_metadata
from tiered.table.table_metadata import ForeignCommit

pytest.importorskip("pyiceberg")


def test_it_follows_its_topic(place: Place) -> None:
    """Tails, whole segments in their place, retention; a repeat commits nothing, also in another process."""
    assert place.live.publish(place.topic.meta, tails=True, grace_seconds=DAY) is None
    place.append(range(10), tails=True)
    first = place.publish()
    assert (first.version, first.changed, first.whole, first.objects, first.records) == (1, True, True, 2, 10)
    assert place.check() == 10
    place.append(range(10, 20), tails=True)
    assert (place.publish().objects, place.check()) == (4, 20)
    place.append(range(20, 30))
    third = place.publish()
    assert (third.version, third.objects, place.check()) == (3, 2, 30)
    for live in (place.live, place.another()):
        again = place.publish(live)
        assert (again.version, again.changed, again.whole, again.records) == (3, False, True, 30)
    place.topic.delete_before(7, 0)
    tier(place.store, place.clock, OFFLOAD_US)
    assert place.publish(place.another()).version == 4
    assert offsets(place.folder) == {0: (0, 7, 15), 1: (0, 0, 15)}
    assert place.check() == 30
    place.append(range(30, 40))
    place.delete_before(15)
    assert (place.publish().objects, place.check()) == (2, 10)
    summary = load(place.folder).current_snapshot().summary
    assert {name: summary[name] for name in ("total-records", "deleted-records", "added-records")} == {
        "total-records": "10", "deleted-records": "30", "added-records": "10",
    }  # fmt: skip


def test_a_table_of_a_topic_without_records(place: Place) -> None:
    """A topic all of whose records were deleted has a table without rows."""
    place.append(range(4))
    place.delete_before(2)
    assert place.publish().objects == 0
    assert rows(place.folder) == []
    place.append(range(4, 8))
    assert (place.publish(place.another()).objects, place.check()) == (2, 4)


def test_sealed_objects_only(place: Place) -> None:
    """Without tails the table ends where the active segment begins."""
    place.append(range(10))
    place.append(range(10, 20), tails=True)
    done = place.publish(tails=False)
    assert (done.whole, done.records, place.check()) == (True, 10, 10)
    place.append(range(20, 22))
    assert (place.publish(tails=False).records, place.check()) == (22, 22)


def test_tails_alone_below_the_start_offset(place: Place) -> None:
    """The start offset lies in a tail, and the table has none: its range is empty."""
    place.append(range(20), tails=True)
    place.delete_before(3)
    assert place.publish(tails=False).records == 0
    assert place.publish(tails=True).records == 20


def test_every_type_and_columns_that_came_later(place: Place) -> None:
    """The values are those of a scan, of columns that were added too; a column without an object yet is null."""
    schema = pa.schema([("carrier", pa.string()), ("tags", pa.list_(pa.struct([("n", pa.int32())])))])
    typed = place.store.create_topic("typed", schema=schema)
    place.topic, place.live = typed, None
    live = place.live = place.another()
    typed.append({"carrier": "UA", "tags": [{"n": 1}]})
    typed.roll()
    tier(place.store, place.clock, OFFLOAD_US)
    place.publish()
    typed.add_columns(pa.schema([("price", pa.decimal128(9, 2)), ("seen", pa.timestamp("us", "UTC"))]))
    assert place.publish(live).version == 2
    typed.append({"carrier": None, "tags": None, "price": 1, "seen": None})
    typed.roll()
    tier(place.store, place.clock, OFFLOAD_US)
    place.publish()
    folder = folder_of(place.bucket, "typed")
    assert check_rows(folder, "typed") == 2
    assert [field.name for field in load(folder).schema().fields][-2:] == ["price", "seen"]
    # An older process, which does not know the columns yet, keeps them.
    assert place.publish(place.another()).changed is False


def test_engines_prune(place: Place) -> None:
    """Objects are left out by partition, offset and timestamp, tails too."""
    for start in (0, 10):
        place.append(range(start, start + 10))
    place.append(range(20, 30), tails=True)
    place.publish()
    table = load(place.folder)
    for condition, objects in (
        ("partition = 1", 3),
        ("offset >= 10", 2),
        ("offset = 4 and partition = 0", 1),
    ):
        assert len(list(table.scan(row_filter=condition).plan_files())) == objects, condition


# -- interrupted commits ---------------------------------------------------------------------------


class Died(BaseException):
    """The process ended."""


class Dying(FaultyStore):
    """A store whose process dies before or after the operation of a number."""

    def __init__(self, inner: Any, number: int, *, after: bool) -> None:
        super().__init__(inner)
        self.number, self.after = number, after

    def put(self, key: str, data: Any, **conditions: Any) -> str:
        if len(self.operations) == self.number and self.after:
            super().put(key, data, **conditions)
            raise Died
        return super().put(key, data, **conditions)

    def _meet(self, verb: str, key: str) -> str | None:
        if len(self.operations) == self.number and not (self.after and verb == "put"):
            raise Died
        return super()._meet(verb, key)


@pytest.mark.extended
@pytest.mark.parametrize("first", [True, False], ids=["first", "later"])
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_crash_at_every_operation_of_a_commit(place: Place, after: bool, first: bool) -> None:
    """The pointer always loads and names nothing that is missing, and another process goes on."""
    place.append(range(6), tails=True)
    if not first:
        place.publish()
        place.append(range(6, 12))
    appended = 12
    for number in count():
        versions = place.versions()
        dying = place.another(lambda store, at=number: Dying(store, at, after=after))  # type: ignore[misc]
        try:
            place.publish(dying)
            break
        except Died:
            pass
        if place.versions():
            place.check()
        if place.versions() != versions:
            # That was the commit: the next process moves the pointer, and the next operation is tried with a new change.
            assert place.publish(place.another()).changed is False
            assert (place.folder / "version-hint.text").read_text() == str(len(place.versions()))
            place.append(range(appended, appended + 2), tails=True)
            appended += 2
    place.check()
    assert number >= 8


@pytest.mark.extended
@pytest.mark.parametrize("fault", ["answer lost", "repeated", "busy", "conflict", "late by 1", "late by 9"])
def test_a_lost_answer_at_every_write(place: Place, fault: str) -> None:
    """The commit is found, or repeated; at worst the next publication finds it."""
    for number in range(12):
        place.append(range(10 * number, 10 * number + 10), tails=number % 2 == 0)
        faulty: list[FaultyStore] = []

        def wrap(store: Any, at: int = number, made: list[FaultyStore] = faulty) -> FaultyStore:
            made.append(FaultyStore(store, {at: fault}))
            return made[0]

        live = place.another(wrap)
        for _ in range(3):
            try:
                place.publish(live)
                break
            except ColdStorageError as error:
                assert error.retryable  # noqa: PT017
        faulty[0].land()
        check_whole(place.folder)
        place.publish()
        assert place.check() == 10 * number + 10


def test_two_writers(place: Place) -> None:
    """Each finds the versions of the other, and none is lost or undone."""
    others = [place.another(), place.another()]
    for number in range(8):
        place.append(range(10 * number, 10 * number + 10), tails=True)
        done = place.publish(others[number % 3 % 2])
        assert (done.version, done.records) == (number + 1, 10 * number + 10)
        place.check()
    assert place.publish(others[0]).changed is False


def test_a_writer_that_is_overtaken_reads_the_heads_again(place: Place) -> None:
    """It read older heads than the version that it meets has, and does not put them on top."""
    place.append(range(10), tails=True)
    place.publish()

    class Overtaken(FaultyStore):
        def put(self, key: str, data: Any, **conditions: Any) -> str:
            if "/snap-" in key and len(self.operations) < 20:
                self.operations += [None] * 20  # type: ignore[list-item]
                place.append(range(20, 30), tails=True)
                assert place.publish().version == 2
            return super().put(key, data, **conditions)

    place.append(range(10, 20), tails=True)
    slow = place.another(Overtaken)
    done = place.publish(slow)
    assert (done.version, done.records, done.changed) == (2, 30, False)
    place.check()


def test_heads_of_long_ago_are_not_put(place: Place) -> None:
    """A process that slept between its read of the heads and its commit gives up, since their objects may be gone."""
    place.append(range(10), tails=True)

    class Sleepy(FaultyStore):
        def put(self, key: str, data: Any, **conditions: Any) -> str:
            place.seconds += DAY / 2
            return super().put(key, data, **conditions)

    with pytest.raises(ColdStorageError, match="longer ago than half of") as raised:
        place.publish(place.another(Sleepy))
    assert raised.value.retryable
    assert not list(place.folder.glob("v*"))
    assert place.publish().version == 1


def test_a_commit_of_another_program_is_refused_and_named(place: Place) -> None:
    """By a known writer and by a new one; --take goes on from the heads."""
    place.append(range(10), tails=True)
    place.publish()
    foreign = json.loads(newest(place.folder).read_text())
    foreign["properties"]["owner"] = "me"
    foreign["snapshots"] = foreign["snapshots"][:1]
    (place.folder / "v2.metadata.json").write_text(json.dumps(foreign))
    place.append(range(10, 20))
    for live in (place.live, place.another()):
        with pytest.raises(ForeignCommit, match=r"v2\.metadata\.json was committed by another program"):
            place.publish(live)
    assert place.publish(take=True).version == 3
    assert place.check() == 20
    assert "owner" not in load(place.folder).properties
    assert place.publish(place.another()).changed is False


def test_a_folder_that_was_emptied_gets_a_table_anew(place: Place) -> None:
    """By hand, once nobody publishes."""
    place.append(range(10), tails=True)
    place.publish()
    for file in place.folder.iterdir():
        file.unlink()
    assert place.publish(place.another()).version == 1
    assert place.check() == 10


@pytest.mark.extended
@pytest.mark.parametrize("closed", [4, 500], ids=["manifests are gone", "old snapshots are gone"])
def test_a_folder_that_is_emptied_beside_a_running_writer(
    place: Place, monkeypatch: pytest.MonkeyPatch, closed: int
) -> None:
    """As by DROP TABLE of an engine: the writer notices that files are gone which it would name again, and --take mends it."""
    monkeypatch.setattr(table_manifests, "CLOSED_OBJECTS", closed)
    for start in range(0, 60, 10):
        place.append(range(start, start + 10))
        place.publish()
    for file in place.folder.iterdir():
        file.unlink()
    place.append(range(60, 70))
    for _ in range(2):
        with pytest.raises(CorruptionError, match="lacks a file.* --take makes the next version"):
            place.publish()
    assert place.publish(take=True).records == 70
    assert place.check() == 70
    place.append(range(70, 80))
    assert (place.publish().records, place.check()) == (80, 80)


def test_a_hint_that_is_lost_beside_a_running_writer(place: Place) -> None:
    place.append(range(10), tails=True)
    place.publish()
    (place.folder / "version-hint.text").unlink()
    place.append(range(10, 20), tails=True)
    assert place.publish().version == 2
    assert (place.folder / "version-hint.text").read_text() == "2"
    place.append(range(20, 30), tails=True)
    assert (place.publish().version, place.check()) == (3, 30)


def test_a_table_that_nothing_of_ours_is_left_of(place: Place) -> None:
    place.append(range(10), tails=True)
    place.publish()
    foreign = json.loads(newest(place.folder).read_text())
    (place.folder / "v1.metadata.json").write_text(json.dumps(foreign | {"properties": {}}))
    assert place.publish(place.another(), take=True).version == 2
    assert place.check() == 10


def lose(folder: Path, pattern: str) -> None:
    for file in folder.glob(pattern):
        file.unlink()


DAMAGE: dict[str, Callable[[Path], Any]] = {
    "hint ahead": lambda folder: (folder / "version-hint.text").write_text("99"),
    "hint that is none": lambda folder: (folder / "version-hint.text").write_text("one"),
    "metadata empty": lambda folder: newest(folder).write_bytes(b""),
    "metadata of something else": lambda folder: newest(folder).write_text(
        newest(folder).read_text().replace('"schemas":', '"columns":')
    ),
    "lists lost": lambda folder: lose(folder, "snap-*"),
    "manifests lost": lambda folder: lose(folder, "manifest-*"),
}


@pytest.mark.extended
@pytest.mark.parametrize("damage", DAMAGE.values(), ids=DAMAGE)
def test_a_damaged_folder_is_named_and_taken(place: Place, damage: Callable[[Path], Any]) -> None:
    """The error says what to do; from then on no version has fewer rows than the one before."""
    for start in range(0, 60, 10):
        place.append(range(start, start + 10), tails=True)
        place.publish()
    damage(place.folder)
    place.append(range(60, 70), tails=True)
    with pytest.raises(
        (CorruptionError, ColdStorageError), match="table TOPIC --take makes the next version"
    ):
        place.publish(place.another())
    assert place.publish(place.another(), take=True).records == 70
    assert place.check() == 70
    for start in range(70, 140, 10):
        place.append(range(start, start + 10), tails=True)
        place.publish()
        assert place.check() == start + 10


def test_a_hint_that_is_set_ahead_of_a_running_writer_is_noticed(place: Place) -> None:
    """Readers would find none of its versions."""
    place.append(range(10), tails=True)
    place.publish()
    (place.folder / "version-hint.text").write_text("99")
    place.append(range(10, 20), tails=True)
    with pytest.raises(CorruptionError, match=r"names metadata that is gone.*v99"):
        place.publish()
    assert place.publish(take=True).version == 100
    assert place.check() == 20


def test_a_copied_bucket_needs_a_new_table(place: Place) -> None:
    """Its URLs are those of the bucket that it was copied from."""
    place.append(range(10), tails=True)
    place.publish()
    text = newest(place.folder).read_text()
    newest(place.folder).write_text(text.replace("/bucket/t/", "/original/t/"))
    with pytest.raises(ConfigError, match="a copied bucket needs a new table"):
        place.publish(place.another())
    place.publish(place.another(), take=True)
    assert place.check() == 10


def test_a_head_that_is_missing_is_not_an_empty_partition(place: Place) -> None:
    place.append(range(10), tails=True)
    place.publish()
    (head,) = place.bucket.glob("t/*/1/head.json")
    head.rename(head.with_suffix(".away"))
    for live in (place.live, place.another()):
        with pytest.raises(CorruptionError, match=r"head\.json of partition 1 is missing"):
            place.publish(live)
    head.with_suffix(".away").rename(head)
    assert place.publish().changed is False


def test_a_partition_that_a_process_does_not_know_yet(place: Place) -> None:
    """It read the topic before another process added the partition and published it: that is no missing head."""
    place.append(range(10), tails=True)
    place.publish()
    before = place.topic.meta
    place.topic.add_partitions(3)
    place.topic.append(b"x", partition=2)
    place.append(range(10, 12), tails=True)
    place.publish(place.here())
    late = place.another()
    done = late.publish(before, tails=True, grace_seconds=DAY)
    assert done is not None
    assert (done.changed, done.whole, done.records) == (False, True, 13)
    place.append(range(12, 14), tails=True)
    done = late.publish(before, tails=True, grace_seconds=DAY)
    assert done is not None
    assert (done.changed, done.records, place.check()) == (True, 15, 15)


@pytest.mark.parametrize("content", [b"", b"x", b"-1", b"1\n"])
def test_a_hint_that_is_no_number(place: Place, content: bytes) -> None:
    """It is damage; a newline, as others write it, is not."""
    place.append(range(10), tails=True)
    place.publish()
    (place.folder / "version-hint.text").write_bytes(content)
    place.append(range(10, 20), tails=True)
    if content == b"1\n":
        assert place.publish(place.another()).version == 2
        place.check()
    else:
        with pytest.raises(CorruptionError, match="is no version"):
            place.publish(place.another())


def test_a_hint_that_is_lost_is_found_by_a_listing(place: Place) -> None:
    for start in (0, 10, 20):
        place.append(range(start, start + 10), tails=True)
        place.publish()
    (place.folder / "version-hint.text").unlink()
    assert place.publish(place.another()).version == 3
    place.check()


def test_damage_in_a_manifest_is_noticed(place: Place) -> None:
    place.append(range(10), tails=True)
    place.publish()
    (manifest,) = place.folder.glob("manifest-*")
    data = bytearray(manifest.read_bytes())
    data[len(data) // 2] ^= 1
    manifest.write_bytes(data)
    with pytest.raises(CorruptionError, match="fails its checksum"):
        place.publish(place.another())


# -- bounds ----------------------------------------------------------------------------------------


@pytest.mark.extended
def test_manifests_are_closed_and_opened_again(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full manifest is not written again until an object of it is gone."""
    monkeypatch.setattr(table_manifests, "CLOSED_OBJECTS", 6)
    seen: set[str] = set()
    for number in range(20):
        place.append(range(10 * number, 10 * number + 10))
        place.append(range(0), tails=True)
        place.publish(place.live if number % 3 else place.another())
        table = load(place.folder)
        manifests = table.current_snapshot().manifests(table.io)
        sizes = sorted(item.added_files_count + item.existing_files_count for item in manifests)
        assert sum(sizes) == 2 * number + 2
        assert all(6 <= size < 12 for size in sizes[1:])
        seen |= {item.manifest_path for item in manifests}
    assert place.check() == 200
    assert len(seen) == 20
    place.delete_before(43)
    kept = {item.manifest_path for item in manifests}
    place.publish()
    assert place.check() == 200 - 2 * 40
    table = load(place.folder)
    assert kept & {item.manifest_path for item in table.current_snapshot().manifests(table.io)}


def test_the_first_publication_goes_in_slices(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a table of its own, from the start on, and the next one goes on after it."""
    monkeypatch.setattr(live_table, "SLICE_OBJECTS", 3)
    monkeypatch.setattr("tiered.format.manifest_changes.INLINE_ENTRIES_MAX", 2)
    monkeypatch.setattr("tiered.format.manifest_changes.PAGE_ENTRIES_MAX", 2)
    for number in range(6):
        place.append(range(10 * number, 10 * number + 10))
    counts = []
    for number in range(20):
        done = place.publish(place.live if number % 2 else place.another())
        place.check()
        counts.append(done.records)
        if done.whole:
            break
    assert counts == sorted(set(counts))
    assert (counts[-1], len(counts)) == (60, len(counts))
    assert len(counts) > 2


@pytest.mark.extended
def test_metadata_stays_small(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last snapshots, then one an hour within half the grace; an idle table loses its old ones too."""
    monkeypatch.setattr(table_metadata, "SNAPSHOTS_KEPT", 5)
    sizes = []
    for number in range(60):
        place.clock.advance(600)
        place.append(range(2 * number, 2 * number + 2), tails=True)
        place.publish(grace_seconds=8 * 3600.0)
        sizes.append(newest(place.folder).stat().st_size)
    snapshots = load(place.folder).snapshots()
    ages = [(place.clock() // 1000 - item.timestamp_ms) / 3.6e6 for item in snapshots]
    assert len(ages) <= 5 + 5
    assert max(ages) <= 4
    assert sum(age > 5 / 6 for age in ages) in (3, 4)
    assert max(sizes[30:]) < 1.05 * max(sizes[24:30])
    place.clock.advance(5 * 3600)
    assert place.publish(grace_seconds=8 * 3600.0).version == 61
    assert len(load(place.folder).snapshots()) == 1
    assert place.publish(grace_seconds=8 * 3600.0).changed is False
    assert place.check() == 120


def test_many_partitions_have_their_offsets_in_a_document(place: Place) -> None:
    place.topic = place.store.create_topic("wide", partitions=12)
    for partition in range(12):
        place.topic.append(b"x", partition=partition)
    place.topic.roll()
    tier(place.store, place.clock, OFFLOAD_US)
    live = place.another()
    place.publish(live)
    folder = folder_of(place.bucket, "wide")
    summary = load(folder).current_snapshot().summary.additional_properties
    assert not [name for name in summary if name.startswith("tiered.offsets.")]
    document = json.loads(path_of(summary["tiered.offsets-file"]).read_text())
    assert document["partitions"]["11"]["offsets"] == [0, 1, 0]
    assert place.publish(place.another()).changed is False


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_topic_of_a_thousand_partitions(place: Place) -> None:
    """Its offsets are in a document, and a commit of a few partitions grows with these."""
    place.topic = topic = place.store.create_topic("wide", partitions=1_000)
    for partition in range(1_000):
        topic.append(b"x", partition=partition)
    topic.flush()
    assert place.store.tierer.tail_pass().report.failed == ()
    live = place.here()
    assert place.publish(live).records == 1_000
    for partition in range(0, 1_000, 100):
        topic.append(b"y", partition=partition)
    topic.flush()
    assert place.store.tierer.tail_pass().report.failed == ()
    done = place.publish(live)
    assert (done.version, done.records, len(done.offsets)) == (2, 1_010, 1_000)
    folder = folder_of(place.bucket, "wide")
    assert len(list(folder.glob("manifest-*"))) <= 4
    found = [(partition, offset) for partition, offset, *_ in rows(folder)]
    assert found == sorted(
        (partition, offset) for partition in range(1_000) for offset in range(1 + (partition % 100 == 0))
    )


def test_a_commit_reads_no_page_of_old_objects(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a topic with more objects than a process keeps entries of, each page would be a request."""
    monkeypatch.setattr("tiered.format.manifest_changes.INLINE_ENTRIES_MAX", 2)
    monkeypatch.setattr("tiered.format.manifest_changes.PAGE_ENTRIES_MAX", 2)
    for number in range(8):
        place.append(range(10 * number, 10 * number + 10))
    place.publish()
    read: list[str] = []
    real = PartitionManifest.load_page

    def load_page(manifest: PartitionManifest, ref: Any) -> Any:
        read.append(ref.name)
        return real(manifest, ref)

    monkeypatch.setattr(PartitionManifest, "load_page", load_page)
    place.append(range(80, 82), tails=True)
    read.clear()
    place.publish()
    assert len(set(read)) <= 2  # the last page of each partition
    assert place.check() == 82


def test_the_summary_says_whether_transactions_are_whole(tmp_path: Path, clock: Clock) -> None:
    settings = stepwise(offload={"after": "4h", "tail_interval": "10s"}, table={"every": "1m"})
    url = f"file://{tmp_path}/bucket"
    with open_store(tmp_path / "data", url, clock, settings=settings) as store:
        topic = store.create_topic("t", partitions=2)

        def published() -> str:
            store.tierer.tables.run()
            table = load(folder_of(tmp_path / "bucket", "t"))
            return str(table.current_snapshot().summary["tiered.transactions"])

        def ship(partition: int) -> None:
            topic.flush()
            store.tierer.tails.publish(topic.meta, partition)

        topic.append(b"x", sync=True)
        ship(0)
        assert published() == "whole"  # the store has no transaction yet
        for _ in range(2):
            with store.transaction() as transaction:
                for partition in range(2):
                    transaction.append("t", b"a", partition=partition)
        ship(1)
        assert published() == "parts"
        ship(0)
        assert published() == "whole"
        topic.append(b"x", partition=1, sync=True)
        with store.transaction() as transaction:
            transaction.append("t", b"b", partition=0)
        ship(1)
        assert published() == "whole"
        ship(0)
        with store.transaction() as transaction:
            for partition in range(2):
                transaction.append("t", b"c", partition=partition)
        ship(0)
        assert published() == "parts"
        with tiered.open(tmp_path / "data", read_only=True, cold=url, settings=settings) as beside:
            # Another process, such as a daemon, publishes from what the log says.
            topic.append(b"y", partition=0, sync=True)
            ship(0)
            beside.tierer.tables.run()
            summary = load(folder_of(tmp_path / "bucket", "t")).current_snapshot().summary
            assert summary["tiered.transactions"] == "parts"
        ship(1)
        assert published() == "whole"


def test_a_table_without_tails_does_not_know_of_published_transactions(tmp_path: Path, clock: Clock) -> None:
    settings = stepwise(
        offload={"after": "4h", "tail_interval": "10s"}, table={"every": "1m", "tails": "off"}
    )
    with open_store(tmp_path / "data", f"file://{tmp_path}/bucket", clock, settings=settings) as store:
        topic = store.create_topic("t", partitions=2)
        with store.transaction() as transaction:
            for partition in range(2):
                transaction.append("t", b"a", partition=partition)
        topic.opened.writers[0].roll()
        topic.flush()
        clock.advance(OFFLOAD_US / 1e6)
        store.tierer.full_pass()
        store.tierer.tail_pass()
        store.commits.completion.settle(ask=True)
        assert store.transactions.open_count == 0
        store.tierer.tables.run()
        folder = folder_of(tmp_path / "bucket", "t")
        assert offsets(folder) == {0: (0, 0, 1), 1: (0, 0, 0)}
        assert load(folder).current_snapshot().summary["tiered.transactions"] == "parts"
