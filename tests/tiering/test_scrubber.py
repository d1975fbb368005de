"""A scrub finds what the bucket lost or changed, pass by pass, says it, and deletes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.support.clock import Clock
from tests.support.s3_server import s3_process
from tests.support.stores import HOUR_US, committer_of, handle_of, local_segments, open_store, tier
from tests.tiering.merged_store import entries_of, fill, head_of, kinds, merging, names_in, offload_all
from tiered.cli.verify import open_tiers
from tiered.cold.manifest.partition_manifest import PartitionManifest
from tiered.errors import ColdStorageError
from tiered.policies.actions import Scrub
from tiered.repair.repair import repair_store
from tiered.tiering.object_actions import ObjectActions

DAY_US = 24 * HOUR_US
PARTS = 5


def scrubbing(bytes_per_pass: str = "1GiB") -> tiered.Settings:
    return merging(merge="off", scrub={"every": "30d", "bytes_per_pass": bytes_per_pass})


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"file://{tmp_path}/bucket"


@pytest.fixture
def store(tmp_path: Path, url: str, clock: Clock) -> Any:
    with open_store(tmp_path / "data", url, clock, settings=scrubbing()) as found:
        fill(found, PARTS)
        offload_all(found, clock)
        yield found


def failed(store: tiered.Store, clock: Clock, ahead_us: int) -> list[str]:
    return [message for _, message in store.tier((clock() + ahead_us) // 1000).failed]


def test_every_kind_of_damage_is_found_said_and_left(
    store: tiered.Store, tmp_path: Path, url: str, clock: Clock
) -> None:
    """A flipped bit in a row group and in a footer, a cut, a missing object; the sound one is not accused."""
    entries = entries_of(url)
    paths = [next((tmp_path / "bucket").rglob(entry.name)) for entry in entries]
    for path, position in ((paths[0], 50), (paths[1], entries[1].tail_position + 3)):
        content = bytearray(path.read_bytes())
        content[position] ^= 4
        path.write_bytes(content)
    paths[2].write_bytes(paths[2].read_bytes()[:-7])
    paths[3].unlink()
    assert failed(store, clock, 29 * DAY_US) == []
    (message,) = failed(store, clock, 30 * DAY_US)
    assert message.startswith("CorruptionError: row group fails its checksum (one of 4 damaged objects) in")
    (row,) = store.status()
    cut = entries[2].bytes - 7
    assert [line.partition(entry.name)[2] for line, entry in zip(row.damaged, entries, strict=False)] == [
        " at byte 0: row group fails its checksum (offsets 0 to 50)",
        f" at byte {entries[1].tail_position}: footer fails its checksum (offsets 50 to 100)",
        f" at byte {cut}: has {cut} bytes, the manifest says {cut + 7} (offsets 100 to 150)",
        ": is missing (offsets 150 to 200)",
    ]
    assert row.scrubbed_us == clock() + 30 * DAY_US
    assert failed(store, clock, 30 * DAY_US) == [], "a round is looked at once"
    assert len(names_in(url)) == PARTS - 1
    assert entries_of(url) == entries
    # Repaired, or gone with the records: said no more.
    topic = store.topic("t")
    topic.delete_before(200)
    tier(store, clock, 31 * DAY_US)
    (row,) = store.status()
    assert row.damaged == ()
    assert failed(store, clock, 61 * DAY_US) == []


def test_a_round_goes_on_where_the_last_pass_stopped(
    store: tiered.Store, tmp_path: Path, url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through restarts, and over a bucket that does not answer; without its file a round begins anew."""
    store.close()
    entries = entries_of(url)
    budget = f"{2 * max(entry.bytes for entry in entries)}"
    looked: list[str] = []

    def scrub(ahead_us: int = 30 * DAY_US, *, away: str = "") -> list[str]:
        from tiered.cold.object_store import file_store

        stat = file_store.FileStore.stat

        def watched(self: Any, key: str) -> Any:
            name = key.rpartition("/")[2]
            if name == away:
                raise ColdStorageError("503", retryable=True)
            if name.endswith(".parquet"):
                looked.append(name)
            return stat(self, key)

        looked.clear()
        with open_store(tmp_path / "data", None, clock, settings=scrubbing(budget)) as again:
            with monkeypatch.context() as patch:
                patch.setattr(file_store.FileStore, "stat", watched)
                again.tier((clock() + ahead_us) // 1000)
        return looked

    names = [entry.name for entry in entries]
    assert scrub() == names[:2]
    assert scrub(away=names[3]) == names[2:3]
    assert scrub() == names[3:]
    assert scrub() == []
    assert scrub(59 * DAY_US) == []
    assert scrub(60 * DAY_US) == names[:2]
    next((tmp_path / "data").rglob("scrub.json")).write_bytes(b"{")
    assert scrub(60 * DAY_US) == names[:2]


@pytest.mark.extended
def test_what_the_server_keeps_a_checksum_of_is_read_every_fourth_round_only(
    tmp_path: Path, clock: Clock
) -> None:
    """Its word costs no byte, and tells an object that was replaced by another of its size."""
    with s3_process() as server:
        url = "s3://bucket/prefix"
        settings = tiered.Settings.model_validate(
            {**scrubbing().to_json(), "cold": {"endpoint_url": server.url, "region": "us-east-1"}}
        )
        with open_store(tmp_path / "data", url, clock, settings=settings) as store:
            fill(store, PARTS)
            offload_all(store, clock)
            cold = store.context.tiers.cold(store.topic("t").opened.meta, 0)
            loaded = cold.load()
            assert loaded is not None
            entries = cold.entries(loaded.head)
            total = sum(entry.bytes for entry in entries)
            read = []
            for number in range(1, 5):
                report = tier(store, clock, 30 * number * DAY_US)
                assert kinds(report) == ["scrub"]
                read.append(report.bytes)
            assert read == [0, 0, 0, total]
            key = cold.keys.data(entries[1].name)
            content = bytearray(cold.store.get(key).data)
            content[9] ^= 1
            cold.store.put(key, content)
            (message,) = failed(store, clock, 150 * DAY_US)
            assert f"row group fails its checksum in {url}/{key} at byte 0" in message


def test_an_object_that_is_replaced_while_it_is_scrubbed_is_no_problem(
    store: tiered.Store, tmp_path: Path, url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention moves on, and a sweep deletes it, between the look at the manifest and the look at the object."""
    from tiered.tiering import scrubber as module

    scrub_object = module.scrub_object

    def late(*arguments: Any, **options: Any) -> Any:
        monkeypatch.setattr(module, "scrub_object", scrub_object)
        store.topic("t").delete_before(50)
        committer_of(store, store.topic("t").opened.meta, 0).raise_start_offset(50)
        next((tmp_path / "bucket").rglob(arguments[2].name)).unlink()
        return scrub_object(*arguments, **options)

    monkeypatch.setattr(module, "scrub_object", late)
    report = tier(store, clock, 30 * DAY_US)
    assert kinds(report) == ["scrub"]
    assert head_of(url).start_offset == 50


def test_a_segment_whose_object_is_damaged_is_not_evicted_before_it_is_repaired(
    tmp_path: Path, url: str, clock: Clock
) -> None:
    """The bucket rots while the disk still has the records: eviction would take the only good copy."""
    rules = merging(merge="off", scrub={"every": "1h"}, local_retention={"age": "8h"})
    with open_store(tmp_path / "data", url, clock, settings=rules) as store:
        topic = fill(store, 3)
        tier(store, clock, 0)
        path = next((tmp_path / "bucket").rglob(entries_of(url)[1].name))
        content = bytearray(path.read_bytes())
        content[50] ^= 4
        path.write_bytes(content)
        assert len(failed(store, clock, 2 * HOUR_US)) == 1
        failed(store, clock, 9 * HOUR_US)
        assert len(local_segments(tmp_path / "data", "t")) == 3
        assert topic.scan().to_arrow().num_rows == 150
    access = open_tiers(tiered.Settings.model_validate({"store": {"path": str(tmp_path / "data")}}))
    assert repair_store(access, deep=True).problems == ()
    with open_store(tmp_path / "data", url, clock, settings=rules) as store:
        assert failed(store, clock, 10 * HOUR_US) == []
        assert len(local_segments(tmp_path / "data", "t")) == 1
        assert store.topic("t").scan().to_arrow().num_rows == 150


def spoilt(tmp_path: Path, url: str) -> Path:
    path = next((tmp_path / "bucket").rglob(entries_of(url)[1].name))
    content = bytearray(path.read_bytes())
    content[50] ^= 4
    path.write_bytes(content)
    return path


def test_what_a_verification_finds_keeps_the_local_copy_until_it_is_repaired(
    tmp_path: Path, url: str, clock: Clock
) -> None:
    """Beside a writer, and without a scrub; a quick look reads again what is known to be damaged."""
    rules = merging(merge="off", local_retention={"age": "8h"})
    with open_store(tmp_path / "data", url, clock, settings=rules) as store:
        fill(store, 3)
        tier(store, clock, 0)
        path = spoilt(tmp_path, url)
        assert len(store.verify(deep=True).problems) == 1
        assert len(store.verify().problems) == 1
        tier(store, clock, 9 * HOUR_US)
        assert len(local_segments(tmp_path / "data", "t")) == 3
        (row,) = store.status()
        assert "row group fails its checksum" in row.damaged[0]
        spoilt(tmp_path, url)  # the bit flips back
        assert store.verify().problems == ()
        assert [row.damaged for row in store.status()] == [()]
        spoilt(tmp_path, url)
        plan = store.plan((clock() + 9 * HOUR_US) // 1000)
        store.verify(deep=True)
        report = store.tierer.executors.executor(lambda: False).execute(plan)
        (message,) = (text for _, text in report.failed)
        assert f" stays: a scrub found {path.name} damaged" in message
    access = open_tiers(tiered.Settings.model_validate({"store": {"path": str(tmp_path / "data")}}))
    assert repair_store(access).problems == ()
    with open_store(tmp_path / "data", url, clock, settings=rules) as store:
        assert [row.damaged for row in store.status()] == [()]
        tier(store, clock, 9 * HOUR_US)
        assert len(local_segments(tmp_path / "data", "t")) == 1
        assert store.topic("t").scan().to_arrow().num_rows == 150


@pytest.mark.parametrize("answers", [1, 3], ids=["before", "after"])
def test_what_a_scrub_found_is_kept_where_the_manifest_cannot_be_read_again(
    store: tiered.Store, tmp_path: Path, url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch, answers: int
) -> None:
    """The bucket stops answering before or after all is found, or a page is damaged: eviction goes by what was found."""
    for number in range(2):
        path = next((tmp_path / "bucket").rglob(entries_of(url)[number].name))
        path.write_bytes(path.read_bytes()[:-7])
        if number == 0:
            assert len(failed(store, clock, 30 * DAY_US)) == 1
    load, left = PartitionManifest.load, [answers]

    def ceasing(self: PartitionManifest) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise ColdStorageError("503", retryable=True)
        return load(self)

    (action,) = store.plan((clock() + 60 * DAY_US) // 1000).actions
    assert isinstance(action, Scrub)
    monkeypatch.setattr(PartitionManifest, "load", ceasing)
    with pytest.raises(tiered.CorruptionError, match="one of 2 damaged objects"):
        store.tierer.handlers[Scrub](action)
    monkeypatch.undo()
    (row,) = store.status()
    assert len(row.damaged) == 2


@pytest.mark.extended
def test_the_word_of_the_server_does_not_clear_what_a_scrub_read(tmp_path: Path, clock: Clock) -> None:
    """The server keeps the checksum that it was given, and the bytes rot: three rounds of four ask it alone."""
    with s3_process() as server:
        cold = {"endpoint_url": server.url, "region": "us-east-1"}
        plain = merging(merge="off", scrub={"every": "30d"}).to_json()
        settings = tiered.Settings.model_validate({**plain, "cold": cold})
        with open_store(tmp_path / "data", "s3://bucket/prefix", clock, settings=settings) as store:
            fill(store, 2)
            offload_all(store, clock)
            meta = store.topic("t").opened.meta
            cold_partition = store.context.tiers.cold(meta, 0)
            loaded = cold_partition.load()
            assert loaded is not None
            entry = cold_partition.entries(loaded.head)[0]
            actions = ObjectActions(store.context, store.open_topics, store.tierer.claims)
            scrub = actions._scrub(handle_of(store, meta, 0))
            scrub.record_damage(entry, tiered.CorruptionError("row group fails its checksum", position=0))
            tier(store, clock, 30 * DAY_US)
            assert [len(row.damaged) for row in store.status()] == [1]
            assert store.verify().problems == ()
            assert [len(row.damaged) for row in store.status()] == [0]
