"""The sweep of live tables: what a table names stays, and what no reader can want any more goes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.support.clock import Clock
from tests.support.stores import OFFLOAD_US, stepwise, tier
from tests.support.watched_bucket import URL, WatchedBucket, host
from tiered.cold.manifest.leases import Lease
from tiered.monitor.metrics.samples import samples

pytest.importorskip("pyiceberg")
from tests.support.memory_table import MemoryTable

HOUR = 3600.0
GRACE_HOURS = 6


class Swept:
    """A store whose table is published once an hour, and whose bucket has the clock of the test."""

    def __init__(self, path: Path, clock: Clock) -> None:
        self.clock = clock
        self.bucket = WatchedBucket()
        self.bucket.clock = lambda: clock() / 1e6
        rules = stepwise(
            offload={"after": "4h", "tail_interval": "1s"},
            table={"every": "1m"},
            merge={"target_bytes": "1MiB", "after": "0s"},
        )
        settings = tiered.Settings.model_validate(
            {**rules.to_json(), "sweep": {"every": "off", "grace": f"{GRACE_HOURS}h"}}
        )
        self.store = tiered.open(path, cold=URL, settings=settings, host=host(self.bucket, clock))
        self.topic = self.store.create_topic("t")
        self.table = MemoryTable(self.bucket, "t")
        self.appended = 0

    def append(self, records: int = 2, *, roll: bool = False) -> None:
        for _ in range(records):
            self.topic.append(b"%d" % self.appended)
            self.appended += 1
        if roll:
            self.topic.roll()
        else:
            self.topic.flush()

    def ship(self) -> None:
        """Ship and publish; what is due of merges, too."""
        self.clock.advance(2)
        tier(self.store, self.clock, 0)

    def seal(self) -> None:
        self.topic.roll()
        tier(self.store, self.clock, OFFLOAD_US)

    def sweep(self) -> tiered.SweepReport:
        report = self.store.sweep()
        assert report.problems == ()
        return report

    def expected(self) -> list[tuple[int, int, bytes]]:
        return [(0, number, b"%d" % number) for number in range(self.appended)]


def kept_objects(swept: Swept) -> float:
    """What the metrics say of objects that are kept for the table alone."""
    (found,) = (
        item.value for item in samples(swept.store.watched()) if item.name == "tiered_table_kept_objects"
    )
    assert isinstance(found, int)
    return found


@pytest.fixture
def swept(tmp_path: Path, clock: Clock) -> Any:
    swept = Swept(tmp_path, clock)
    with swept.store:
        yield swept


@pytest.mark.extended
def test_old_versions_go_and_each_can_be_read_for_the_grace(swept: Swept) -> None:
    """A version can be read for the grace after it was replaced, time travel in the newest one; then its files go."""
    replaced: dict[int, float] = {}
    sizes = []
    for hour in range(24):
        for _ in range(3):
            swept.append()
            swept.ship()
            swept.clock.advance(HOUR / 3)
        if hour % 5 == 4:
            swept.seal()
        newest = swept.table.version()
        for version in range(max(replaced, default=0) + 1, newest):
            replaced.setdefault(
                version, swept.bucket.modified[swept.table.key(rf"v{version + 1}\.metadata\.json")]
            )
        preview = swept.store.sweep(dry_run=True)
        report = swept.sweep()
        assert {part.place for part in report.parts if part.deleted} <= {"t/0", "t/table"}
        if hour:  # the first sweep claims the partition
            assert preview.objects == report.objects
        now = swept.clock() / 1e6
        # Their objects were replaced up to one publication before them.
        readable = [version for version, at in replaced.items() if now - at < (GRACE_HOURS - 0.5) * HOUR]
        for version in readable[:: max(1, len(readable) // 2)]:
            swept.table.check_whole(version, time_travel=False)
        swept.table.check_whole(newest)
        sizes.append(len(swept.table.files()))
    assert max(sizes[12:]) <= 4 * 3 * (GRACE_HOURS + 2) + 30
    assert swept.table.values() == swept.expected()
    gone = [version for version in replaced if f"v{version}.metadata.json" not in swept.table.files()]
    assert len(gone) > 40
    assert swept.sweep().objects == 0


def test_leftovers_of_failed_publications_go_and_files_of_others_stay(swept: Swept) -> None:
    swept.append()
    swept.ship()

    def fail(request: str) -> None:
        if request.startswith("put") and "/v2." in request:
            raise tiered.ColdStorageError("denied")

    swept.append()
    swept.clock.advance(2)
    swept.bucket.hook = fail
    with pytest.raises(tiered.ColdStorageError, match="denied"):
        swept.store.tier()
    swept.bucket.hook = lambda request: None
    left = set(swept.table.files())
    folder = swept.table.key(r"v1\.metadata\.json").rpartition("/")[0]
    mine = {"notes.txt", "snap-1-2.avro", "v01.metadata.json", "v3.metadata.json.bak"}
    for name in mine:
        swept.bucket.put(f"{folder}/{name}", b"x")
    swept.clock.advance(HOUR)
    swept.ship()
    for _ in range(2):
        swept.clock.advance((GRACE_HOURS + 1) * HOUR)
        swept.append()
        swept.ship()
        swept.sweep()
    now = set(swept.table.files())
    assert mine <= now
    assert not left & now - {"version-hint.text"}
    swept.table.check_whole()


def test_a_table_that_is_stuck_keeps_its_objects(swept: Swept, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tails that a segment replaced, objects that a merge replaced, records that were deleted: as long as it is stuck."""
    swept.append(roll=True)
    swept.append()
    swept.seal()
    swept.append()
    swept.ship()
    expected = swept.expected()
    version = swept.table.version()
    assert swept.table.values() == expected
    objects = swept.table.check_whole()
    with monkeypatch.context() as patch:
        patch.setattr(type(swept.store.tierer.tables), "publish", lambda *_, **__: None)
        swept.seal()
        swept.append(roll=True)
        swept.topic.delete_before(5)
        for _ in range(4):
            swept.clock.advance(GRACE_HOURS * HOUR)
            swept.seal()
            report = swept.sweep()
        assert swept.table.version() == version
        assert swept.table.values() == expected
        (part,) = (part for part in report.parts if part.kept)
        assert (part.place, part.kept) == ("t/0", objects)
        assert kept_objects(swept) == objects
    swept.ship()
    assert swept.table.version() == version + 1
    assert kept_objects(swept) == 0
    for _ in range(2):
        # Whoever read the last version has the grace from now on: the sweep begins to count.
        swept.clock.advance(0.49 * GRACE_HOURS * HOUR)
        swept.sweep()
        swept.table.check_whole(version)
    swept.clock.advance(GRACE_HOURS * HOUR)
    assert any(len(part.deleted) >= objects for part in swept.sweep().parts if part.place == "t/0")
    swept.table.check_whole()


def test_a_table_that_cannot_be_read_keeps_everything_of_its_topic(swept: Swept) -> None:
    """As one that another program committed to; other topics are swept."""
    other = swept.store.create_topic("other")
    for _ in range(2):
        swept.append(1)
        other.append(b"x", sync=True)
        swept.ship()
    for topic in (swept.topic, other):
        topic.roll()
    tier(swept.store, swept.clock, OFFLOAD_US)
    key = swept.table.key(rf"v{swept.table.version()}\.metadata\.json")
    foreign = json.loads(swept.bucket.objects[key][0])
    foreign["properties"] = {}
    following = key.replace(f"/v{swept.table.version()}.", f"/v{swept.table.version() + 1}.")
    swept.bucket.put(following, json.dumps(foreign).encode())
    before = {key for key in swept.bucket.objects if key.startswith("t/")}
    swept.store.sweep()
    swept.clock.advance((GRACE_HOURS + 1) * HOUR)
    for topic in (swept.topic, other):
        topic.append(b"2", sync=True)
    swept.appended += 1
    with pytest.raises(tiered.ConfigError, match="was committed by another program"):
        swept.store.tier((swept.clock() + 2_000_000) // 1000)
    report = swept.store.sweep()
    assert {problem.partition(":")[0] for problem in report.problems} == {"t/0", "t/table"}
    assert "was committed by another program" in report.problems[0]
    assert before <= swept.bucket.objects.keys()
    assert any(part.deleted for part in report.parts if part.topic == "other")
    swept.store.tierer.tables.publish(swept.topic.meta, take=True)
    swept.clock.advance((GRACE_HOURS + 1) * HOUR)
    swept.append()
    swept.ship()
    swept.sweep()
    assert following not in swept.bucket.objects
    assert swept.table.values() == swept.expected()


def test_a_lease_keeps_old_versions(swept: Swept) -> None:
    swept.append()
    swept.ship()
    swept.clock.advance(60)
    lease = Lease.take(swept.bucket, seconds=7 * 24 * HOUR, monotonic=lambda: swept.clock() / 1e6)
    for _ in range(5):
        swept.clock.advance(HOUR * GRACE_HOURS)
        swept.append()
        swept.ship()
        assert all(not part.deleted for part in swept.sweep().parts if part.table)
    swept.table.check_whole(1)
    lease.release()
    swept.sweep()
    assert "v1.metadata.json" not in swept.table.files()


def test_a_sweep_takes_no_more_than_it_may(swept: Swept) -> None:
    for _ in range(3):
        swept.append()
        swept.ship()
        swept.clock.advance(HOUR * GRACE_HOURS * 2)
    settings = swept.store.context.settings
    swept.store.apply_settings(
        settings.model_copy(update={"sweep": settings.sweep.model_copy(update={"objects_max": 1})})
    )
    (part,) = (part for part in swept.sweep().parts if part.table)
    assert (len(part.deleted), part.left > 0) == (1, True)
    swept.table.check_whole()


def test_no_version_between_others_goes_if_the_clock_of_the_host_goes_back(swept: Swept) -> None:
    """The log of the newest version then lacks later versions than one that it names. Readers walk from one to the next."""
    ahead = 0.0
    swept.bucket.clock = lambda: swept.clock() / 1e6 + ahead
    for hours in (0, 1.5, 0.75, -4.75):
        swept.clock.advance(hours * HOUR)
        ahead += max(0, -hours) * HOUR  # the clock of the bucket goes on
        swept.append()
        swept.ship()
    assert swept.table.version() == 4
    ahead += (GRACE_HOURS + 1) * HOUR
    swept.sweep()
    assert swept.store.verify().problems == ()


def test_no_version_between_others_goes_after_one_of_another_program(swept: Swept) -> None:
    """The version that takes over names the one of the other program and not ours before it, which it goes on from."""
    for _ in range(2):
        swept.append()
        swept.ship()
    key = swept.table.key(r"v2\.metadata\.json")
    foreign = json.loads(swept.bucket.objects[key][0]) | {"properties": {}}
    swept.bucket.put(key.replace("/v2.", "/v3."), json.dumps(foreign).encode())
    swept.store.tierer.tables.publish(swept.topic.meta, take=True)
    swept.clock.advance((GRACE_HOURS + 1) * HOUR)
    swept.sweep()
    assert swept.store.verify().problems == ()


def test_the_folder_of_a_topic_without_a_table_is_left_alone(swept: Swept) -> None:
    """With ``table = "off"`` the store does not look after it, and its objects go."""
    swept.append()
    swept.ship()
    files = swept.table.files()
    settings = stepwise(offload={"after": "4h", "tail_interval": "1s"}, table="off")
    swept.store.apply_settings(
        tiered.Settings.model_validate({**settings.to_json(), "sweep": {"every": "off", "grace": "6h"}})
    )
    swept.seal()
    swept.sweep()
    swept.clock.advance((GRACE_HOURS + 1) * HOUR)
    assert [part.place for part in swept.sweep().parts if part.deleted] == ["t/0"]
    assert swept.table.files() == files


def test_what_the_pointer_names_stays_while_it_is_behind(swept: Swept) -> None:
    """Some engines read the version of the pointer, and walk on from there only by whole numbers."""
    swept.append()
    swept.ship()

    def fail(request: str) -> None:
        if request.startswith("put") and request.endswith("/version-hint.text"):
            raise tiered.ColdStorageError("denied")

    swept.bucket.hook = fail
    with pytest.raises(tiered.ColdStorageError, match="denied"):
        swept.seal()  # other objects take the place of those of version 1
    for _ in range(4):
        swept.append()
        swept.clock.advance((GRACE_HOURS + 1) * HOUR)
        with pytest.raises(tiered.ColdStorageError, match="denied"):
            swept.ship()
        swept.store.sweep()
    assert swept.table.version() == 2
    assert swept.bucket.objects[swept.table.key("version-hint.text")][0] == b"1"
    swept.table.check_whole(1)
    swept.bucket.hook = lambda request: None
    swept.ship()
    assert swept.table.values() == swept.expected()
    for _ in range(3):
        swept.clock.advance((GRACE_HOURS + 1) * HOUR)
        swept.append()
        swept.ship()
        swept.sweep()
    assert "v1.metadata.json" not in swept.table.files()


def test_versions_that_readers_do_not_find_keep_everything_of_the_topic(swept: Swept) -> None:
    """Until a publication goes on after them."""
    for _ in range(5):
        swept.append()
        swept.ship()
    swept.seal()
    del swept.bucket.objects[swept.table.key(r"v3\.metadata\.json")]
    swept.bucket.put(swept.table.key("version-hint.text"), b"2")
    before = {key for key in swept.bucket.objects if key.startswith("t/")}
    for _ in range(2):
        swept.clock.advance((GRACE_HOURS + 1) * HOUR)
        report = swept.store.sweep()
        assert {problem.partition(":")[0] for problem in report.problems} == {"t/0", "t/table"}
        assert "readers find no version of a table between 2 and 6" in report.problems[0]
    assert before <= swept.bucket.objects.keys()
    swept.append()
    swept.ship()
    assert swept.table.version() == 7
    assert swept.table.values() == swept.expected()
    swept.sweep()
