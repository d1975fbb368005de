"""A scan is one snapshot, whatever moves tier while it is read (promise P8), and nothing else is evicted than
what is published under its own id (promise P5)."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from uuid import uuid4

import pyarrow as pa
import pytest

import tiered
from tests.support.clock import Clock
from tests.support.fast_endpoint import s3_endpoint  # noqa: F401
from tests.support.stores import (
    COMPRESS_US,
    EVICT_US,
    OFFLOAD_US,
    handle_of,
    in_threads,
    local_segments,
    offsets_by_partition,
    open_store,
    stepwise,
    tier,
    values,
)
from tiered.cold.manifest.commit import Committer
from tiered.format.codec import Codec
from tiered.policies.actions import EvictLocal
from tiered.reader import snapshot
from tiered.reader import tiers as access
from tiered.warm.filesystem import OsFileSystem
from tiered.warm.partition_directory import Listing, list_segments
from tiered.warm.reencode import rewrite_segment

SMALL = {"block_bytes": "32KiB", "hot_bytes": "64KiB"}
ROWS = 3000  # of each segment; batches of a scan have at least 4096 rows
SEGMENTS = 6


@pytest.fixture(params=["file", "s3"])
def cold(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        return str(request.getfixturevalue("s3_bucket"))
    return f"file://{tmp_path}/bucket"


@pytest.fixture
def store(tmp_path: Path, cold: str, clock: Clock) -> Iterator[tiered.Store]:
    with open_store(tmp_path / "data", cold, clock, settings=stepwise(SMALL)) as store:
        yield store


def fill(topic: tiered.Topic, segments: int = SEGMENTS) -> None:
    """Append numbered rows, sealed but for the last segment."""
    for number in range(segments):
        first = number * ROWS
        topic.append_batch(pa.table({"value": [b"%08d" % i for i in range(first, first + ROWS)]}))
        if number + 1 < segments:
            topic.roll()


def expected(segments: int = SEGMENTS) -> list[bytes]:
    return [b"%08d" % i for i in range(segments * ROWS)]


def read_lazily(scan: tiered.Scan, between: list[object]) -> list[bytes]:
    """Read a scan batch by batch, with something done before each."""
    steps = iter(between)
    found: list[bytes] = []
    batches = scan.to_batches()
    while True:
        step = next(steps, None)
        if callable(step):
            step()
        batch = next(batches, None)
        if batch is None:
            return found
        found += batch.column("value").to_pylist()


@pytest.mark.parametrize("beside", [False, True], ids=["writer", "beside"])
def test_a_scan_taken_before_everything_moves_gives_every_row_once(
    store: tiered.Store, clock: Clock, tmp_path: Path, beside: bool
) -> None:
    """Re-encoded, offloaded and evicted while it is read: by the writer, and by a reader beside it."""
    topic = store.create_topic("t")
    fill(topic)
    store.flush()
    reader = open_store(tmp_path / "data", None, clock, read_only=True) if beside else store
    scans = [reader.topic("t").scan() for _ in range(2)]
    steps = [
        lambda: tier(store, clock, COMPRESS_US),
        topic.roll,
        lambda: tier(store, clock, OFFLOAD_US),
        lambda: tier(store, clock, EVICT_US),
    ]
    assert read_lazily(scans[0], list(steps)) == expected()
    # The other one is read only now: all its files are gone.
    assert len(local_segments(tmp_path / "data", "t")) == 1
    assert values(scans[1]) == expected()
    assert values(topic) == expected()
    assert topic.scan().explain().tiers[2].records > (SEGMENTS - 1) * ROWS
    if beside:
        reader.close()


def test_a_scan_of_cold_rows_survives_that_their_objects_are_replaced(
    store: tiered.Store, clock: Clock, tmp_path: Path, cold: str
) -> None:
    """Tails shipped of a segment give way to one object of the whole; a scan planned on the tails goes on."""
    shipping = stepwise(SMALL, offload={"after": "4h", "tail_interval": "1s"})
    store.close()
    with open_store(tmp_path / "data", None, clock, settings=shipping) as store:
        topic = store.create_topic("t")
        for number in range(3):
            topic.append_batch(
                pa.table({"value": [b"%08d" % i for i in range(number * ROWS, (number + 1) * ROWS)]})
            )
            store.flush()
            clock.advance(2)
            tier(store, clock, 0)
        with tiered.open(cold) as bucket:
            scan = bucket.topic("t").scan()
            assert len(scan.splits()) == 3
            batches = scan.to_batches()
            found = next(batches).column("value").to_pylist()
            topic.roll()
            tier(store, clock, OFFLOAD_US)
            assert len(bucket.topic("t").scan().splits()) == 1
            found += [value for batch in batches for value in batch.column("value").to_pylist()]
            assert found == expected(3)
            assert values(bucket.topic("t")) == expected(3)


def test_an_object_that_is_replaced_in_the_middle_of_its_read_is_read_on_in_the_other(
    tmp_path: Path, clock: Clock
) -> None:
    """As after a merge and a sweep: from the offset that was reached, no row twice and none left out."""
    url, random = f"file://{tmp_path}/bucket", Random(0)
    with open_store(tmp_path / "data", url, clock) as store:
        topic = store.create_topic("t")
        # Larger than what is fetched at once, and not to be compressed.
        written = [random.randbytes(20_000) for _ in range(3000)]
        topic.append_batch(pa.table({"value": written}))
        topic.roll()
        tier(store, clock, OFFLOAD_US)
        with tiered.open(url) as bucket:
            batches = bucket.topic("t").scan().to_batches()
            found = next(batches).column("value").to_pylist()
            assert 0 < len(found) < len(written)
            cold = store.context.tiers.cold(topic.opened.meta, 0)
            committer = Committer(cold, store.store_id, clock=clock)
            committer.claim()
            (old,) = (tmp_path / "bucket").rglob("*.parquet")
            new = committer.new_object_name(0)
            old.rename(old.with_name(new))
            committer.commit(lambda head: replace(head, inline=(replace(head.inline[0], name=new),)))
            found += [value for batch in batches for value in batch.column("value").to_pylist()]
        assert found == written


def test_rows_deleted_during_a_scan_are_an_error_or_still_there(
    store: tiered.Store, clock: Clock, tmp_path: Path
) -> None:
    """Never a hole: a reader that is too late gets OffsetOutOfRange with what the log has now."""
    topic = store.create_topic("t")
    fill(topic)
    with open_store(tmp_path / "data", None, clock, read_only=True) as reader:
        store.flush()
        early, late = topic.scan(), reader.topic("t").scan(start_offset=(SEGMENTS - 1) * ROWS)
        batches = early.to_batches()
        found = next(batches).column("value").to_pylist()
        topic.roll()
        topic.delete_before(SEGMENTS * ROWS)
        tier(store, clock, 0)
        assert len(local_segments(tmp_path / "data", "t")) == 1
        outcome: tiered.OffsetOutOfRange | None = None
        try:
            for batch in batches:
                found += batch.column("value").to_pylist()
        except tiered.OffsetOutOfRange as error:
            outcome = error
        if outcome is None:
            assert found == expected()
        else:
            assert found == expected()[: len(found)]
            assert (outcome.start, outcome.end) == (SEGMENTS * ROWS, SEGMENTS * ROWS)
        # The file was opened when the scan was taken, and stays readable.
        assert values(late) == expected()[(SEGMENTS - 1) * ROWS :]
        with pytest.raises(tiered.OffsetOutOfRange, match="is gone"):
            reader.topic("t").scan(start_offset=0)


def test_a_scan_whose_file_is_gone_before_it_is_opened_says_what_the_log_has(
    store: tiered.Store, clock: Clock
) -> None:
    """The active file of the writer itself is mapped at the first read; here it is expired before."""
    topic = store.create_topic("t")
    fill(topic, 1)
    scan = topic.scan()
    topic.roll()
    topic.append(b"kept")
    topic.delete_before(ROWS)
    tier(store, clock, 0)
    with pytest.raises(tiered.OffsetOutOfRange) as caught:
        scan.to_arrow()
    assert (caught.value.start, caught.value.end) == (ROWS, ROWS + 1)
    assert values(topic) == [b"kept"]


@pytest.mark.extended
@pytest.mark.parametrize("seconds", [1.0, pytest.param(30.0, marks=pytest.mark.slow)])
def test_readers_see_dense_offsets_while_writers_append_and_everything_moves(
    store: tiered.Store, clock: Clock, tmp_path: Path, seconds: float
) -> None:
    """Two writers, one tiering loop, readers in the writer's process and beside it, all at once.

    Each scan: offsets without gap or repeat, each writer's rows in its order, never less than the scan before.
    """
    topic = store.create_topic("t", partitions=2)
    stop = time.monotonic() + seconds
    passes = [0]

    def repeat(work: Callable[..., None], *arguments: object) -> None:
        while time.monotonic() < stop or passes[0] < 4:
            work(*arguments)

    numbers = [itertools.count(), itertools.count()]

    def write(partition: int) -> None:
        rows = [b"%d" % next(numbers[partition]) for _ in range(200)]
        topic.append_many([{"value": row, "partition": partition} for row in rows[:100]])
        topic.append_batch(pa.table({"value": rows[100:]}), partition=partition)
        time.sleep(0.002)

    def move() -> None:
        topic.roll()
        tier(store, clock, (COMPRESS_US, OFFLOAD_US, EVICT_US)[passes[0] % 3])
        passes[0] += 1

    seen: dict[object, int] = {}

    def read(reader: tiered.Store) -> None:
        table = reader.topic("t").scan().to_arrow()
        assert table.num_rows >= seen.get(reader, 0)
        seen[reader] = table.num_rows
        for offsets in offsets_by_partition(table).values():
            assert offsets == list(range(len(offsets)))
        assert table["value"].to_pylist() == [b"%d" % offset for offset in table["offset"].to_pylist()]

    with open_store(tmp_path / "data", None, clock, read_only=True) as beside:
        works = [partial(repeat, write, partition) for partition in (0, 1)]
        works += [partial(repeat, read, reader) for reader in (store, beside)]
        in_threads(*works, partial(repeat, move))
        written = [next(number) for number in numbers]
        read(store)
        read(beside)
        assert seen == {store: sum(written), beside: sum(written)}
        assert topic.scan().explain().tiers[2].records > 0


# -- promise P5 ------------------------------------------------------------------------------------


def eviction(store: tiered.Store, topic: tiered.Topic) -> EvictLocal:
    """What a plan would ask for, for the first local segment."""
    local = handle_of(store, topic.opened.meta, 0).local().segments[0]
    return EvictLocal(
        topic=topic.name,
        partition=0,
        segment_id=local.header.segment_id,
        base_offset=local.header.base_offset,
        end_offset=local.end_offset,
        bytes=1,
        reason="test",
    )


def test_a_segment_is_not_evicted_for_an_object_of_another_segment(
    store: tiered.Store, clock: Clock, tmp_path: Path
) -> None:
    """The same offsets under another id prove nothing: another lineage may have written them."""
    topic = store.create_topic("t")
    fill(topic, 2)
    tier(store, clock, OFFLOAD_US)
    topic.flush()
    cold = store.context.tiers.cold(topic.opened.meta, 0)
    committer = Committer(cold, store.store_id, clock=clock)
    committer.claim()
    committer.commit(
        lambda head: replace(
            head, inline=tuple(replace(entry, segment_ids=(uuid4(),)) for entry in head.inline)
        )
    )
    files = local_segments(tmp_path / "data", "t")
    assert len(files) == 2
    with pytest.raises(tiered.TieredError, match=r"stays.*segment id"):
        store.tierer.handlers[EvictLocal](eviction(store, topic))
    for _ in range(2):
        with pytest.raises(tiered.Fenced, match="other records than this disk"):
            store.tier((clock() + EVICT_US) // 1000)
    assert local_segments(tmp_path / "data", "t")[0].startswith(files[0][:20])
    assert values(topic) == expected(2)


def objects(tmp_path: Path, cold: str) -> list[str]:
    if cold.startswith("file:"):
        return [str(path) for path in sorted((tmp_path / "bucket").rglob("*.parquet"))]
    import boto3

    name, _, prefix = cold.removeprefix("s3://").partition("/")
    found = boto3.client("s3").list_objects_v2(Bucket=name, Prefix=f"{prefix}/")
    return [item["Key"] for item in found["Contents"] if item["Key"].endswith(".parquet")]


def damage(cold: str, name: str, data: bytes | None) -> None:
    """Replace an object behind the store's back, or delete it."""
    if cold.startswith("file:"):
        Path(name).unlink() if data is None else Path(name).write_bytes(data)
        return
    import boto3

    client, bucket = boto3.client("s3"), cold.removeprefix("s3://").partition("/")[0]
    if data is None:
        client.delete_object(Bucket=bucket, Key=name)
    else:
        client.put_object(Bucket=bucket, Key=name, Body=data)


@pytest.mark.parametrize("data", [None, b"PAR1"], ids=["missing", "cut short"])
def test_a_segment_is_not_evicted_for_a_damaged_object(
    store: tiered.Store, clock: Clock, tmp_path: Path, cold: str, data: bytes | None
) -> None:
    """The object is looked at again before the only other copy goes."""
    topic = store.create_topic("t")
    fill(topic, 3)
    tier(store, clock, OFFLOAD_US)
    names = objects(tmp_path, cold)
    assert len(names) == 2
    damage(cold, names[0], data)
    files = local_segments(tmp_path / "data", "t")
    report = store.tier((clock() + EVICT_US) // 1000)
    assert [action.base_offset for action, _ in report.failed] == [0]
    left = local_segments(tmp_path / "data", "t")
    assert files[0] in left
    assert files[1] not in left
    assert values(topic) == expected(3)


def test_an_object_lost_from_the_bucket_is_an_error_of_every_scan(
    store: tiered.Store, clock: Clock, tmp_path: Path, cold: str
) -> None:
    """Rows that are in no tier any more are named, never skipped (promise P8)."""
    topic = store.create_topic("t")
    fill(topic, 3)
    tier(store, clock, OFFLOAD_US)
    tier(store, clock, EVICT_US)
    damage(cold, objects(tmp_path, cold)[0], None)
    with pytest.raises(tiered.CorruptionError) as caught:
        topic.scan().to_arrow()
    assert caught.value.offsets == (0, ROWS)
    assert values(topic.scan(start_offset=ROWS)) == expected(3)[ROWS:]


# -- what can happen between the listing of a directory and the opening of its files ----------------


@pytest.fixture
def after_listing(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Callable[[Listing], Listing]]]:
    """Each step is taken once, in order, right after a reader has listed a partition's directory."""
    steps: list[Callable[[Listing], Listing]] = []

    def listed(directory: Path) -> Listing:
        found = list_segments(directory)
        return steps.pop(0)(found) if steps else found

    for module in (access, snapshot):
        monkeypatch.setattr(module, "list_segments", listed)
    yield steps
    assert steps == [], "a step was not reached"


TWENTY = [b"%d" % i * 10_000 for i in range(20)]


def twenty_segments(store: tiered.Store) -> tiered.Topic:
    """Most of them are too large to be in memory still."""
    topic = store.create_topic("t")
    for value in TWENTY:
        topic.append(value)
        topic.roll()
    return topic


def test_files_that_are_re_encoded_faster_than_they_are_opened_are_found(
    store: tiered.Store, clock: Clock, tmp_path: Path, after_listing: list[Callable[[Listing], Listing]]
) -> None:
    """Whatever is listed, the next file to be opened has just got its next generation."""
    twenty_segments(store)
    with open_store(tmp_path / "data", None, clock, read_only=True) as reader:
        topic = reader.topic("t")

        def rewrite(number: int, found: Listing) -> Listing:
            rewrite_segment(OsFileSystem(), tmp_path / f"data/topics/t/0/{number:020d}-0.log", Codec.LZ4, 0)
            return found

        after_listing += [partial(rewrite, number) for number in range(20)]
        assert values(topic) == TWENTY


@pytest.mark.parametrize("beside", [False, True], ids=["writer", "beside"])
def test_a_file_that_a_changing_directory_does_not_list_is_found_at_the_second_look(
    store: tiered.Store,
    clock: Clock,
    tmp_path: Path,
    beside: bool,
    after_listing: list[Callable[[Listing], Listing]],
) -> None:
    """A rename while a large directory is read can hide the file under both of its names (POSIX readdir)."""
    topic = twenty_segments(store)
    with open_store(tmp_path / "data", None, clock, read_only=True) as other:
        reader = other.topic("t") if beside else topic
        after_listing.append(lambda found: Listing((*found.segments[:7], *found.segments[8:]), ()))
        assert values(reader) == TWENTY


@pytest.mark.extended
@pytest.mark.parametrize("beside", [False, True], ids=["writer", "beside"])
def test_files_that_are_evicted_after_they_were_listed_are_read_from_the_bucket(
    store: tiered.Store,
    clock: Clock,
    tmp_path: Path,
    beside: bool,
    after_listing: list[Callable[[Listing], Listing]],
) -> None:
    topic = twenty_segments(store)
    tier(store, clock, OFFLOAD_US)
    with open_store(tmp_path / "data", None, clock, read_only=True) as other:
        reader = other.topic("t") if beside else topic

        def evict(found: Listing) -> Listing:
            tier(store, clock, EVICT_US)
            return found

        after_listing.append(evict)
        assert values(reader) == TWENTY
        assert len(local_segments(tmp_path / "data", "t")) == 1


@pytest.mark.parametrize("beside", [False, True], ids=["writer", "beside"])
def test_rows_that_expire_after_the_listing_are_no_hole(
    store: tiered.Store,
    clock: Clock,
    tmp_path: Path,
    beside: bool,
    after_listing: list[Callable[[Listing], Listing]],
) -> None:
    """A scan without a start begins where the log begins now; one with a start says that it is gone."""
    topic = twenty_segments(store)
    with open_store(tmp_path / "data", None, clock, read_only=True) as other:
        reader = other.topic("t") if beside else topic

        def expire(offset: int, found: Listing) -> Listing:
            topic.delete_before(offset)
            tier(store, clock, 0)
            return found

        after_listing.append(partial(expire, 5))
        assert values(reader)[-15:] == TWENTY[5:]
        after_listing.append(partial(expire, 8))
        with pytest.raises(tiered.OffsetOutOfRange) as caught:
            reader.scan(start_offset=5)
        assert (caught.value.start, caught.value.end) == (8, 20)
