"""How many requests and bytes reads take of a real HTTP server, and what they do when something is gone."""

from __future__ import annotations

import pickle
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from urllib.parse import unquote

import pyarrow as pa
import pytest

import tiered
from tests.support.paths import ROOT
from tests.support.s3_server import S3, s3_thread
from tests.support.scripted_server import Answer, Request, refusal
from tiered.cold.fetch import object_reader
from tiered.cold.parquet import writer
from tiered.format import manifest_changes
from tiered.format.manifest_codec import decode_head, encode_head
from tiered.reader.read import read_split
from tiered.reader.rows import Query
from tiered.reader.splits import ColdSource
from tiered.reader.tiers import Tiers

ROWS, SEGMENTS = 3000, 4
GROUP_BYTES = 256 << 10


@dataclass
class Log:
    """What was asked of the server."""

    requests: list[tuple[str, str, int]]
    answer: object = None

    def __call__(self, request: Request) -> Answer | None:
        first, _, last = request.headers.get("range", "bytes=0--1").removeprefix("bytes=").partition("-")
        self.requests.append((request.method, unquote(request.path), int(last) + 1 - int(first)))
        return self.answer(request) if callable(self.answer) else None

    def take(self) -> list[str]:
        """Kinds of the requests since the last look."""
        kinds = [
            "head"
            if "head.json" in path
            else "page"
            if "/pages/" in path
            else "data"
            if ".parquet" in path
            else "topic"
            for _, path, _ in self.requests
        ]
        self.requests.clear()
        return kinds

    def take_bytes(self) -> int:
        """Bytes of objects asked for since the last look."""
        size = sum(length for _, path, length in self.requests if path.endswith(".parquet"))
        self.requests.clear()
        return size


@dataclass
class World:
    folder: Path
    endpoint: str
    server: S3
    log: Log

    def settings(self, **store: object) -> tiered.Settings:
        now = {"offload": {"after": "0s", "tail_interval": "off"}, "local_retention": {"age": "0s"}}
        rules = {"roll": {"bytes": "64MiB"}, "compress": "off", **now}
        return tiered.Settings.model_validate(
            {"store": store, "cold": {"endpoint_url": self.endpoint}, "policies": {"default": rules}}
        )

    def open(self, **store: object) -> tiered.Store:
        return tiered.open(self.folder / "data", settings=self.settings(**store), read_only=True)


def values(number: int) -> list[bytes]:
    """What zstd finds nothing in."""
    source = Random(number)
    return [source.randbytes(300) for _ in range(ROWS)]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """A store of one partition whose records lie in four objects of several row groups, named by two pages."""
    log, folder, row_groups = Log([]), tmp_path_factory.mktemp("requests"), writer._row_groups
    with pytest.MonkeyPatch.context() as patch, s3_thread(S3(fault=log)) as (endpoint, server):
        patch.setattr(manifest_changes, "INLINE_ENTRIES_MAX", 2)
        # Smaller than the setting allows.
        patch.setattr(
            writer, "_row_groups", lambda *rows_and_size: row_groups(*rows_and_size[:2], GROUP_BYTES)
        )
        patch.setattr(object_reader, "SMALL_OBJECT_BYTES", 10_000)
        patch.setattr(object_reader, "FETCH_BYTES", 2 * GROUP_BYTES)
        patch.setattr(object_reader, "_GAP_BYTES", 1000)
        made = World(folder, endpoint, server, log)
        with tiered.open(folder / "data", cold="s3://bucket/p", settings=made.settings()) as store:
            schema = pa.schema([("small", pa.int64()), ("body", pa.binary())])
            topic = store.create_topic("t", schema=schema)
            for number in range(SEGMENTS):
                topic.append_batch(
                    pa.table({"small": range(ROWS), "body": values(number)}, schema=topic.schema)
                )
                topic.roll()
                for _ in range(2):
                    assert not store.tier().failed
        yield made


@pytest.fixture
def fresh(world: World) -> Iterator[World]:
    """The same, with nothing cached and nothing asked."""
    for path in (world.folder / "data" / "cache").glob("*"):
        path.unlink()
    world.log.requests.clear()
    yield world
    world.log.answer = None


def entries(store: tiered.Store) -> list[object]:
    found = [
        split.source.entry
        for split in store.topic("t").scan().splits()
        if isinstance(split.source, ColdSource)
    ]
    assert len(found) == SEGMENTS
    return found


def point(store: tiered.Store, offset: int) -> int:
    (record,) = store.topic("t").read(offset=offset, limit=1)
    assert record.value["body"] == values(offset // ROWS)[offset % ROWS]
    return record.offset


def test_a_point_read_takes_two_requests_and_none_when_cached(fresh: World) -> None:
    """The partition's first read adds head and page; a restarted process has the disk cache, and reads the head."""
    with fresh.open() as store:
        assert point(store, 10) == 10
        assert sorted(fresh.log.take()) == ["data", "data", "head", "page"]
        assert point(store, ROWS + 10) == ROWS + 10  # the same page, another object
        assert fresh.log.take() == ["data", "data"]
        for offset in (10, 11, ROWS + 10):
            point(store, offset)
        assert fresh.log.take() == []
    with fresh.open(cache_memory_bytes=0) as store:
        point(store, 10)
        assert sorted(fresh.log.take()) == ["head", "page"]
        point(store, ROWS + 10)
        assert fresh.log.take() == []
        assert store.context.tiers.fetch_counters.counts.requests == 0
    with fresh.open(cache_bytes=0) as store:
        point(store, 10)
        assert sorted(fresh.log.take()) == ["data", "data", "head", "page"]


def test_some_columns_of_a_point_take_two_requests_too(fresh: World) -> None:
    with fresh.open() as store:
        store.topic("t").scan(start_offset=5, end_offset=6)
        fresh.log.take()
        (row,) = (
            store.topic("t")
            .scan(start_offset=5, end_offset=6, columns=["small", "timestamp"])
            .to_arrow()
            .to_pylist()
        )
        assert row["small"] == 5
        assert fresh.log.take() == ["data", "data"]


def test_a_scan_moves_what_is_stored_and_no_more(fresh: World) -> None:
    with fresh.open() as store:
        stored = sum(entry.bytes for entry in entries(store))  # type: ignore[attr-defined]
        fresh.log.requests.clear()
        assert store.topic("t").scan().to_arrow().num_rows == ROWS * SEGMENTS
        assert fresh.log.take_bytes() == stored


def test_a_narrow_range_moves_its_row_groups_and_one_footer_an_object(fresh: World) -> None:
    """Over the border of two objects."""
    with fresh.open() as store:
        low, high = ROWS - 900, ROWS + 900
        found = entries(store)
        groups = [
            g for entry in found for g in entry.row_groups if g.end_offset > low and g.base_offset < high
        ]  # type: ignore[attr-defined]
        assert 2 < len(groups) < sum(len(entry.row_groups) for entry in found)  # type: ignore[attr-defined]
        footers = [entry.bytes - entry.tail_position for entry in found[:2]]  # type: ignore[attr-defined]
        fresh.log.requests.clear()
        assert store.topic("t").scan(start_offset=low, end_offset=high).to_arrow().num_rows == 1800
        assert fresh.log.take_bytes() <= sum(g.length for g in groups) + sum(footers)


def test_a_column_moves_its_own_bytes(fresh: World) -> None:
    with fresh.open() as store:
        stored = sum(entry.bytes for entry in entries(store))  # type: ignore[attr-defined]
        fresh.log.requests.clear()
        assert store.topic("t").scan(columns=["small"]).to_arrow().num_rows == ROWS * SEGMENTS
        assert 0 < fresh.log.take_bytes() < stored / 20


def test_a_reader_that_wants_one_row_fetches_no_more_than_its_row_group(fresh: World) -> None:
    with fresh.open() as store:
        largest = max(g.length for entry in entries(store) for g in entry.row_groups)  # type: ignore[attr-defined]
        fresh.log.requests.clear()
        assert store.topic("t").scan(limit=1).to_arrow().num_rows == 1
        assert fresh.log.take_bytes() < 3 * largest
        assert store.context.tiers.fetch_counters.counts.ahead == 0


def test_the_cache_is_never_taken_for_the_log(fresh: World) -> None:
    """A scan without a start asks for the head each time, and so does a store that is opened by its URL."""
    with fresh.open() as store:
        point(store, 10)
        fresh.log.take()
        store.topic("t").scan()
        assert "head" in fresh.log.take()
        with pytest.raises(tiered.OffsetOutOfRange):
            list(store.topic("t").read(offset=ROWS * SEGMENTS + 1, limit=1))
    with tiered.open("s3://bucket/p", settings=fresh.settings()) as store:
        topic = store.topic("t")
        for asked in (["data", "data", "head", "page"], ["head"]):
            fresh.log.take()
            assert [record.offset for record in topic.read(offset=10, limit=1)] == [10]
            assert sorted(fresh.log.take()) == asked


def test_a_page_that_was_replaced_sends_the_reader_to_a_fresh_head(fresh: World) -> None:
    """The first head that is read names a page that is gone by then; one that stays gone is an error."""
    heads: list[bytes] = []
    key = next(key for key in fresh.server.objects if key.endswith("head.json"))
    pages = [key for key in fresh.server.objects if "/pages/" in key]

    def gone(request: Request) -> Answer | None:
        if "head.json" in request.path:
            heads.append(fresh.server.objects[key].data)
            document = heads[0]
            if len(heads) > 1:
                return None
            # As a head of another commit would be.
            before = decode_head(document, where="head")
            other = replace(
                before,
                commit_id="earlier",
                pages=(replace(before.pages[0], name="gone.json.zst"), *before.pages[1:]),
            )
            return Answer(200, encode_head(other), {"ETag": '"x"'})
        return None

    fresh.log.answer = gone
    with fresh.open() as store:
        assert store.topic("t").scan(end_offset=10).to_arrow().num_rows == 10
        assert fresh.log.take().count("head") == 2
    lost = [unquote(page) for page in pages]
    fresh.log.answer = lambda request: (
        refusal(404, "NoSuchKey") if any(p in unquote(request.path) for p in lost) else None
    )
    with fresh.open() as store, pytest.raises(tiered.ColdStorageError, match="pages/"):
        store.topic("t").scan(end_offset=10)


def test_an_object_that_is_gone_is_looked_up_in_a_fresh_head(fresh: World) -> None:
    """What a remembered head names may have been replaced; one that is lost is an error after a few looks."""
    with fresh.open() as store:
        point(store, 10)
        fresh.log.take()
        fresh.log.answer = lambda request: refusal(404, "NoSuchKey") if ".parquet" in request.path else None
        with pytest.raises(tiered.CorruptionError, match="are gone"):
            point(store, 2 * ROWS + 10)
        assert fresh.log.take().count("head") > 1
        fresh.log.answer = None
        assert point(store, 2 * ROWS + 10) == 2 * ROWS + 10


def test_a_slow_down_is_retried(fresh: World) -> None:
    left = [2]

    def busy(request: Request) -> Answer | None:
        if ".parquet" in request.path and left[0]:
            left[0] -= 1
            return refusal(503, "SlowDown")
        return None

    fresh.log.answer = busy
    with fresh.open() as store:
        assert point(store, 10) == 10
    assert left == [0]


def test_an_executor_has_a_cache_of_its_own_in_memory_and_shares_the_one_on_disk(fresh: World) -> None:
    with fresh.open() as store:
        point(store, 10)
        meta = store.topic("t").opened.meta
        (split,) = store.topic("t").scan(start_offset=10, end_offset=11).splits()
        access = pickle.loads(pickle.dumps(store.context.tiers))
        store.context.tiers.fetcher.drain()
        fresh.log.take()
        assert isinstance(access, Tiers)
        assert sum(batch.num_rows for batch in read_split(access, meta, split, Query())) == 1
        assert fresh.log.take() == []
        access.close()


def test_an_abandoned_scan_and_a_closed_store_leave_no_threads(fresh: World) -> None:
    before = {thread.name for thread in threading.enumerate()}
    with fresh.open() as store:
        batches = store.topic("t").scan().to_batches()
        next(batches)
        assert store.context.tiers.fetch_counters.counts.ahead > 0
        batches.close()  # type: ignore[attr-defined]
        assert store.context.tiers.fetcher._ahead_bytes_left == 64 << 20
    assert not [
        name for name in {t.name for t in threading.enumerate()} - before if name.startswith("tiered")
    ]


@pytest.mark.extended
def test_an_interpreter_that_ends_in_the_middle_of_a_scan_ends_well(fresh: World) -> None:
    code = """
        import sys, tiered
        from pathlib import Path
        settings = tiered.Settings.model_validate({"cold": {"endpoint_url": sys.argv[2]}})
        store = tiered.open(sys.argv[1], settings=settings, read_only=True)
        batches = store.topic("t").scan().to_batches()
        print(next(batches).num_rows > 0)
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(fresh.folder / "data"), fresh.endpoint]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
