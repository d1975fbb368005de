"""A repair does what the table in docs/verify.md says, loses nothing, and keeps every damaged original."""

from __future__ import annotations

import errno
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

import tiered
from tests.repair.repairs import access_of, check_whole, done, repair, spoil
from tests.support.budget import thinned
from tests.support.clock import Clock
from tests.support.damage import Damage, cut, flipped, grown, missing, swapped, zeroed
from tests.support.disks import Killed
from tests.support.stores import evict_all, open_store, stepwise
from tests.support.verified_store import PARTITIONS, Place, segment_parts
from tiered.cli.verify import open_tiers
from tiered.cold.manifest.restores import IntentHolder
from tiered.cold.manifest.store_documents import StoreDocuments
from tiered.cold.object_store.file_store import FileStore
from tiered.cold.object_store.rereads import READS_MAX
from tiered.errors import StoreLocked
from tiered.format.manifest_codec import decode_head
from tiered.repair.repair import repair_store
from tiered.settings.settings import Settings
from tiered.verify.report import Item
from tiered.verify.verifier import verify_store
from tiered.warm.filesystem import OsFileSystem
from tiered.warm.partition_directory import read_marks, write_marks


def aside(path: Path) -> list[Path]:
    return list(path.parent.glob(f".damaged-{path.name}-*"))


# -- segments --------------------------------------------------------------------------------------

FOOTERS: dict[str, Callable[[Path], Damage]] = {
    "footer": lambda path: flipped(segment_parts(path)["footer"][0]),
    "index": lambda path: flipped(segment_parts(path)["index"][0] + 3),
    "facts": lambda path: zeroed(*segment_parts(path)["facts"]),
    "trailer": lambda path: zeroed(*segment_parts(path)["trailer"]),
    "trailer's magic": lambda path: flipped(path.stat().st_size - 1),
    "cut off": lambda path: cut(segment_parts(path)["footer"][0]),
    "cut inside": lambda path: cut(segment_parts(path)["facts"][0]),
    "bytes after it": lambda path: grown(b"garbage"),
}


@pytest.mark.extended
@pytest.mark.parametrize(
    ("part", "which"), thinned([(part, which) for part in FOOTERS for which in (0, 2)], 3)
)
def test_a_footer_is_rebuilt_from_blocks_that_verify(place: Place, which: int, part: str) -> None:
    """Of a compressed segment (0) and one as it was written (2), by the chain of the next; the bucket is not needed."""
    path = place.segments()[which]
    spoilt = spoil(path, FOOTERS[part](path))
    report = repair(place)
    assert [item.action for item in done(report)] == ["rebuilt the footer from its blocks"]
    check_whole(place, report)
    kept = aside(path)
    assert [item.read_bytes() for item in kept] == [spoilt]
    assert done(report)[0].kept == str(kept[0])
    assert not path.exists()


@pytest.mark.extended
@pytest.mark.parametrize("part", ["header", "schema", "block 0 header", "block 0 chunk 1"])
def test_a_damaged_segment_is_fetched_again_from_its_object(place: Place, part: str) -> None:
    path = place.segments()[1]
    spoilt = spoil(path, flipped(segment_parts(path)[part][0] + 1))
    report = repair(place)
    assert len(done(report)) == 1
    assert done(report)[0].action.startswith("fetched again from 00000000000000000060-")
    check_whole(place, report)
    assert [item.read_bytes() for item in aside(path)] == [spoilt]


def test_another_segment_in_its_place_is_replaced_from_the_bucket(place: Place) -> None:
    path = place.segments()[1]
    spoil(path, swapped(place.segments(1)[1]))
    check_whole(place, repair(place))


def test_what_no_other_tier_has_is_refused_and_left_alone(place: Place) -> None:
    """A damaged block of a segment that only this disk has: nothing is dropped, nothing is changed."""
    path = place.segments()[2]
    spoilt = spoil(path, flipped(segment_parts(path)["block 0 chunk 0"][0] + 9))
    report = repair(place)
    assert [item.result for item in report.repairs] == ["refused"]
    assert "the bucket does not have the whole segment" in report.repairs[0].why
    assert [item.where for item in report.problems] == [str(path)]
    assert path.read_bytes() == spoilt
    assert aside(path) == []


def test_blocks_that_nothing_proves_complete_get_no_footer(place: Place) -> None:
    """A footer over a segment whose last block was cut off would drop records."""
    path = place.segments()[3]
    spoilt = spoil(path, cut(segment_parts(path)["block 1 header"][0]))
    report = repair(place)
    assert {item.result for item in report.repairs} == {"refused"}
    assert "nothing proves that the blocks are all of them" in report.repairs[0].why
    assert path.read_bytes() == spoilt


def test_a_damaged_newest_file_is_refused(place: Place) -> None:
    path = place.segments()[-1]
    spoilt = spoil(path, flipped(segment_parts(path)["block 0 chunk 0"][0]))
    report = repair(place)
    assert [item.result for item in report.repairs] == ["refused"]
    assert path.read_bytes() == spoilt


def test_a_repair_that_is_killed_keeps_the_damaged_original(place: Place) -> None:
    """The next pass takes the damaged file for the leftover of a re-encoding, once the repaired one has its name."""

    class Dying(OsFileSystem):
        def rename(self, source: Path, target: Path) -> None:
            super().rename(source, target)
            raise Killed

    path = place.segments()[1]
    spoilt = spoil(path, flipped(segment_parts(path)["block 0 header"][0]))
    with pytest.raises(Killed):
        repair_store(access_of(place), fs=Dying())
    with tiered.open(place.data, settings=stepwise()) as store:
        store.tierer.full_pass()
    assert not path.exists()
    assert [item.read_bytes() for item in aside(path)] == [spoilt]


def test_a_file_system_without_hard_links_keeps_the_damaged_original_too(place: Place) -> None:
    class NoLinks(OsFileSystem):
        def link(self, source: Path, target: Path) -> None:
            raise OSError(errno.EPERM, "Operation not permitted", str(source), None, str(target))

    path = place.segments()[1]
    spoilt = spoil(path, flipped(segment_parts(path)["block 0 header"][0]))
    assert repair_store(access_of(place), fs=NoLinks()).ok
    assert not path.exists()
    assert [item.read_bytes() for item in aside(path)] == [spoilt]


# -- the bucket ------------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize(
    "damage",
    [flipped(100), flipped(1900), cut(700), missing, grown(b"x")],
    ids=["row", "footer", "cut", "missing", "grown"],
)
def test_an_object_is_uploaded_again_from_the_good_segment(place: Place, damage: Damage) -> None:
    """Under a new name, published by a commit; the damaged object stays for the sweep."""
    path = place.objects()[4]
    spoilt = spoil(path, damage)
    report = repair(place)
    assert len(done(report)) == 1
    assert done(report)[0].action.startswith("uploaded again as 00000000000000000048-")
    assert not path.exists() if damage is missing else path.read_bytes() == spoilt
    check_whole(place, report)


def test_an_object_that_the_disk_does_not_have_is_refused(place: Place) -> None:
    path = place.objects()[1]
    spoil(path, flipped(100))
    report = repair(place)
    assert [(item.result, item.where.removeprefix("file://")) for item in report.repairs] == [
        ("refused", str(path))
    ]
    assert "the disk does not have its records any more" in report.repairs[0].why


def test_known_damage_is_read_again_once_however_much_there_is(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not once for each repair: of many objects of a whole row group each that would be hours."""
    for path in place.objects()[1:4]:
        spoil(path, flipped(100))
    assert len(repair(place).problems) == 3
    get_range, begun = FileStore.get_range, Counter[str]()

    def counted(self: FileStore, key: str, start: int, length: int) -> bytes:
        begun[key] += start == 0
        return get_range(self, key, start, length)

    monkeypatch.setattr(FileStore, "get_range", counted)
    assert len(repair_store(access_of(place)).problems) == 3
    assert list((+begun).values()) == [READS_MAX] * 3


def test_segment_and_object_that_are_both_damaged_are_refused(place: Place) -> None:
    segment, cold = place.segments()[1], place.objects()[5]
    before = [
        spoil(segment, flipped(segment_parts(segment)["block 0 chunk 0"][0])),
        spoil(cold, flipped(100)),
    ]
    report = repair(place)
    assert {item.result for item in report.repairs} == {"refused"}
    assert [segment.read_bytes(), cold.read_bytes()] == before


@pytest.mark.extended
@pytest.mark.parametrize("damage", [flipped(40), cut(100), missing], ids=["bit", "cut", "missing"])
def test_a_page_is_made_again_from_its_objects(place: Place, damage: Damage) -> None:
    path = min((place.cold() / "pages").iterdir())
    spoil(path, damage)
    report = repair(place)
    assert [item.action.split(" from ")[0] for item in done(report)] == ["made again"]
    check_whole(place, report)


@pytest.mark.extended
@pytest.mark.parametrize("damage", [flipped(40), cut(100), missing], ids=["bit", "cut", "missing"])
def test_a_lost_head_is_proposed_first_and_rebuilt_when_asked_for(place: Place, damage: Damage) -> None:
    path = place.cold() / "head.json"
    spoilt = spoil(path, damage)
    report = repair(place)
    assert [item.result for item in report.repairs] == ["proposed"]
    assert "offsets 5 to 72, 0 objects left out" in report.repairs[0].action
    assert "may reappear" in report.repairs[0].why
    assert not path.exists() if damage is missing else path.read_bytes() == spoilt
    report = repair(place, rebuild_manifest=True)
    assert len(done(report)) == 1
    check_whole(place, report)
    if damage is not missing:
        assert [item.read_bytes() for item in place.bucket.glob(".damaged/*-head.json")] == [spoilt]


def test_what_a_rebuilt_head_adopted_is_no_old_orphan_to_the_next_sweep(place: Place) -> None:
    """A sweep had seen an orphan long ago: once it is named and unnamed again, its readers have the whole grace."""
    directory = place.data / "topics" / "orders" / "0"
    name = str(place.objects()[2].relative_to(place.bucket))
    write_marks(OsFileSystem(), directory, {name: 1.0})
    spoil(place.cold() / "head.json", missing)
    assert len(done(repair(place, rebuild_manifest=True))) == 1
    assert read_marks(directory) == {}


def test_a_head_is_not_rebuilt_by_the_host_that_a_restore_left_behind(place: Place, tmp_path: Path) -> None:
    """Its lineage would fence the store that went on, whose records are nowhere else yet."""
    url = f"file://{place.bucket}"
    tiered.restore(url, tmp_path / "new", settings=stepwise()).close()
    spoil(place.cold() / "head.json", missing)
    report = repair(place, rebuild_manifest=True)
    assert [item.result for item in report.repairs] == ["refused"]
    assert "restored elsewhere" in report.repairs[0].why
    assert not (place.cold() / "head.json").exists()
    there = Place(tmp_path / "moved", place.truth)
    there.root.mkdir()
    (tmp_path / "new").rename(there.data)
    assert len(done(repair(there, rebuild_manifest=True))) == 1
    assert (place.cold() / "head.json").exists()


def test_an_older_head_is_told_of_and_made_again_once_it_is_put_aside(tmp_path: Path, clock: Clock) -> None:
    """As from an old version of the bucket, or a replica: the objects are all there."""
    data, clock.now_us = tmp_path / "data", time.time_ns() // 1000
    heads = []
    with open_store(data, f"file://{tmp_path}/bucket", clock) as store:
        for number in range(2):
            store.create_topic("t", exist_ok=True).append(b"%d" % number)
            store.topic("t").roll()
            evict_all(store, clock)
            head = next((tmp_path / "bucket").glob("t/*/0/head.json"))
            heads.append(head.read_bytes())
    head.write_bytes(heads[0])
    access = open_tiers(Settings.model_validate({"store": {"path": str(data)}}))
    (problem,) = verify_store(access).problems
    assert (problem.item, problem.offsets) == (Item.LOG, (1, 2))
    assert "does not name: that may be an older one; put it aside" in problem.reason
    head.unlink()
    assert repair_store(access, rebuild_manifest=True).problems == ()
    with open_store(data, None, clock) as store:
        assert [item.value for item in store.topic("t").read(0)] == [b"0", b"1"]


def test_a_head_is_not_rebuilt_over_a_gap(place: Place) -> None:
    """An object is missing too: a manifest of the rest would drop what lies before the gap."""
    spoil(place.cold() / "head.json", missing)
    spoil(place.objects()[2], missing)
    report = repair(place, rebuild_manifest=True)
    assert [item.result for item in report.repairs] == ["refused"]
    assert "offsets 24 to 36 are in no object" in report.repairs[0].why
    assert not (place.cold() / "head.json").exists()


# -- documents -------------------------------------------------------------------------------------


@pytest.mark.extended
@pytest.mark.parametrize("damage", [flipped(20), cut(9)], ids=["bit", "cut"])
@pytest.mark.parametrize(
    "name",
    [
        "store.json",
        "topics/orders/topic.json",
        "topics/orders/0/start.json",
        "topics/orders/0/lineage.json",
        "topics/orders/0/sweep.json",
        "topics/orders/1/fenced.json",
    ],
)
def test_a_document_is_written_anew_from_what_else_says_it(place: Place, name: str, damage: Damage) -> None:
    path = place.data / name
    spoilt = spoil(path, damage)
    report = repair(place)
    assert [item.where for item in done(report)] == [str(path)]
    assert [item.read_bytes() for item in aside(path)] == [spoilt]
    check_whole(place, report)
    assert PARTITIONS == 2  # and partition 1 is still fenced:
    with tiered.open(place.data) as store, pytest.raises(tiered.Fenced):
        store.topic("orders").append(b"x", partition=1)


def test_a_document_too_long_to_read_is_put_aside_and_written_anew(place: Place) -> None:
    path = place.data / "store.json"
    os.truncate(path, 1 << 40)
    report = repair(place)
    assert [item.where for item in done(report)] == [str(path)]
    assert [item.stat().st_size for item in aside(path)] == [1 << 40]
    check_whole(place, report)


def test_a_store_with_transactions_keeps_its_format(tmp_path: Path, clock: Clock) -> None:
    """Otherwise an older release would open it, and complete no transaction."""
    with open_store(tmp_path / "data", None, clock) as store:
        store.create_topic("t")
        with store.transaction() as transaction:
            transaction.append("t", b"a")
    path = tmp_path / "data/store.json"
    content = path.read_bytes()
    spoil(path, cut(9))
    report = repair_store(open_tiers(Settings.load(store={"path": str(tmp_path / "data")})))
    assert [item.result for item in report.repairs] == ["done"]
    assert path.read_bytes() == content


def test_where_the_bucket_is_must_be_said_again_and_is_checked(place: Place, tmp_path: Path) -> None:
    path = place.data / "cold.json"
    spoil(path, flipped(20))
    report = repair(place)
    assert [item.result for item in report.repairs] == ["refused"]
    assert "--cold" in report.repairs[0].why
    assert repair(place, url=f"file://{tmp_path / 'elsewhere'}").problems
    report = repair(place, url=f"file://{place.bucket}")
    check_whole(place, report)


@pytest.mark.extended
@pytest.mark.parametrize("damage", [flipped(20), missing], ids=["bit", "missing"])
@pytest.mark.parametrize("name", ["store.json", "topic.json"])
def test_the_bucket_s_documents_are_written_anew_from_the_local_ones(
    place: Place, name: str, damage: Damage
) -> None:
    path = place.bucket / name if name == "store.json" else next(place.bucket.glob("*/*/topic.json"))
    content = path.read_bytes()
    spoil(path, damage)
    report = repair(place)
    assert len(done(report)) == 1
    check_whole(place, report)
    assert path.read_bytes() == content


def test_a_topic_s_document_is_of_the_lineage_by_which_the_store_went_on(place: Place) -> None:
    """A restore was begun and given up, so that the bucket's lineage is above that of this disk, which is in charge."""
    restoring = IntentHolder(StoreDocuments(FileStore(place.bucket)), "1", "ann@host")
    restoring.begin()
    path = next(place.bucket.glob("*/*/topic.json"))
    spoil(path, missing)
    assert [item.result for item in repair(place).repairs] == ["refused"]  # it may be finished yet
    restoring.give_up()
    assert len(done(repair(place))) == 1
    assert b'"lineage":3' in path.read_bytes()


# -- care ------------------------------------------------------------------------------------------


def test_nothing_is_changed_in_a_sound_store(place: Place) -> None:
    def state() -> dict[Path, bytes]:
        return {
            path: path.read_bytes()
            for path in place.root.rglob("*")
            if path.is_file() and "lock" not in path.name
        }

    before = state()
    report = repair(place, rebuild_manifest=True)
    assert (report.repairs, report.problems) == ((), ())
    assert state() == before


def test_a_store_that_is_open_is_not_repaired(place: Place) -> None:
    with tiered.open(place.data), pytest.raises(StoreLocked, match="this process"):
        repair(place)


def test_several_damages_are_repaired_in_one_go(place: Place) -> None:
    """What one hides from the other, too: the topic's document, a footer, an object, a page and a head."""
    spoil(place.data / "topics/orders/topic.json", cut(50))
    footer, fetched = place.segments()[2], place.segments(1)[0]
    spoil(footer, FOOTERS["trailer"](footer))
    spoil(fetched, flipped(5))
    spoil(place.objects()[-1], flipped(100))
    # Not the page that names this object: it cannot be made again from an object that is damaged too.
    oldest = decode_head((place.cold() / "head.json").read_bytes(), where="").pages[0]
    spoil(place.cold() / "pages" / oldest.name, flipped(40))
    spoil(place.cold(1) / "head.json", cut(50))
    report = repair(place, rebuild_manifest=True)
    check_whole(place, report)
