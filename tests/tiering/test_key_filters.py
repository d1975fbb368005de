"""Objects with filters in the life of a store: every way to read, rewrite and erase finds what it finds without them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import tiered
from tests.support.clock import Clock
from tests.support.row_groups import small_row_groups
from tests.support.stores import EVICT_US, HOUR_US, OFFLOAD_US, open_store, repaired, stepwise, tier
from tiered.cold.fetch import key_probe, object_reader
from tiered.cold.fetch.key_probe import KeyProbe
from tiered.cold.parquet.key_filters import KeyFilters, hashes_of
from tiered.format.manifest import ObjectEntry
from tiered.tiering import erased_rows

KINDS = (pa.binary(), pa.string(), pa.int8(), pa.int16(), pa.int32(), pa.int64())
ADDED = pa.schema([("added", pa.float64())])


def rules(mode: str, **more: Any) -> tiered.Settings:
    return stepwise(
        offload={"after": "4h", "tail_interval": "off", "key_filter": mode},
        local_retention={"age": "8h"},
        **more,
    )


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Row groups of a few rows, each fetched alone, and filters that are always worth their fetch."""
    small_row_groups(monkeypatch, 600)
    monkeypatch.setattr(object_reader, "SMALL_OBJECT_BYTES", 0)
    monkeypatch.setattr(object_reader, "FETCH_BYTES", 1)
    monkeypatch.setattr(key_probe, "_SHARE", 0)


def entries(topic: tiered.Topic) -> list[ObjectEntry]:
    return [split.source.entry for split in topic.scan().splits() if split.tier == "cold"]  # type: ignore[attr-defined]


def key_of(kind: pa.DataType, number: int) -> Any:
    if pa.types.is_integer(kind):
        return number - 60
    return f"k{number}" if pa.types.is_string(kind) else b"k%d" % number


class Log:
    """A topic in many objects, with and without filters, merged ones among them; and what is in it."""

    def __init__(self, folder: Path, kind: pa.DataType, numbers: list[int | None], modes: list[str]) -> None:
        self.folder, self.kind, self.clock = folder, kind, Clock()
        self.expected: dict[Any, list[int]] = defaultdict(list)
        schema = pa.schema([("key", kind), ("n", pa.int64())])
        size = 1 + len(numbers) // len(modes)
        for part, mode in enumerate(modes):
            rows = numbers[part * size : (part + 1) * size]
            merge = {"merge": {"after": "0s", "target_bytes": "1MiB"}} if mode == "merged" else {}
            with self.open(rules("on" if mode == "merged" else mode, **merge)) as store:
                topic = store.create_topic("t", schema=schema, key="key", exist_ok=part > 0)
                if part == 2:
                    topic.add_columns(ADDED)
                for at, number in enumerate(rows):
                    row = {"key": None if number is None else key_of(kind, number), "n": part * size + at}
                    topic.append(row)
                    self.expected[row["key"]].append(row["n"])
                    if at % 7 == 6:
                        topic.roll()
                topic.roll()
                tier(store, self.clock, OFFLOAD_US)
                tier(store, self.clock, OFFLOAD_US)
                tier(store, self.clock, EVICT_US)

    def open(self, settings: tiered.Settings) -> Any:
        return open_store(self.folder / "data", f"file://{self.folder}/bucket", self.clock, settings=settings)

    def check(self, topic: tiered.Topic, numbers: range) -> None:
        """Each key has its rows, by itself and among others, with a bound and a limit."""
        for number in numbers:
            key = key_of(self.kind, number)
            rows = topic.scan(key=key, columns=["n"]).to_arrow().column("n").to_pylist()
            assert rows == self.expected.get(key, []), key
        keys = [key_of(self.kind, number) for number in numbers]
        some = topic.scan(filter=("key", "in", keys[::3]), columns=["n"]).to_arrow().column("n").to_pylist()
        assert some == sorted(n for key in keys[::3] for n in self.expected.get(key, []))
        for key in keys[:3]:
            first = topic.scan(key=key, columns=["n"], limit=1).to_arrow().column("n").to_pylist()
            assert first == self.expected.get(key, [])[:1]
            late = topic.scan(key=key, columns=["n"], start_offset=9).to_arrow().column("n").to_pylist()
            assert late == [n for n in self.expected.get(key, []) if n >= 9]


def ways(log: Log, stack: ExitStack) -> Iterator[tiered.Topic]:
    """By the store's directory, over Flight, and by the bucket."""
    store = stack.enter_context(log.open(rules("auto")))
    yield store.topic("t")
    yield stack.enter_context(tiered.open(store.serve("127.0.0.1:0").location)).topic("t")
    yield stack.enter_context(tiered.open(f"file://{log.folder}/bucket")).topic("t")


@pytest.mark.extended
@settings(
    max_examples=6,
    deadline=None,
    phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    kind=st.sampled_from(KINDS),
    numbers=st.lists(st.none() | st.integers(0, 60), min_size=20, max_size=80),
    modes=st.lists(st.sampled_from(["on", "off", "merged"]), min_size=3, max_size=4),
)
def test_reads_by_key_find_the_same_rows_in_every_way(
    tmp_path_factory: pytest.TempPathFactory, kind: pa.DataType, numbers: list[int | None], modes: list[str]
) -> None:
    """With nulls, columns that were added, objects of earlier releases, and merged ones."""
    log = Log(tmp_path_factory.mktemp("log"), kind, numbers, modes)
    with ExitStack() as stack:
        for topic in ways(log, stack):
            log.check(topic, range(0, 70, 5))
        store = tiered.open(log.folder / "data", read_only=True)
        assert stack.enter_context(store).verify(deep=True).problems == ()


@pytest.mark.extended
@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_compactions_and_erasures_write_filters_and_find_what_is_there(
    tmp_path: Path, kind: pa.DataType
) -> None:
    """A rewrite's filters have the keys that it keeps, and an erasure by filters leaves no record behind."""
    numbers = [None if at % 11 == 5 else at * 7 % 50 for at in range(90)]
    log = Log(tmp_path, kind, numbers, ["on", "off", "on"])
    compact = rules("on", compact_keys={"after": "0s", "dirty": 0.001})
    with log.open(compact) as store:
        topic = store.topic("t")
        tier(store, log.clock, EVICT_US)
        tier(store, log.clock, EVICT_US + HOUR_US)
        for key, rows in log.expected.items():
            if key is not None:
                rows[:-1] = []
        log.check(topic, range(55))
        rewritten = [
            entry.footer_position
            for entry in entries(topic)
            if 0 < entry.record_count < entry.end_offset - entry.base_offset
        ]
        assert rewritten
        assert all(rewritten)
        gone = [key_of(kind, number) for number in (0, 7, 49, 54)]
        erasure = topic.erase(gone)
        tier(store, log.clock, EVICT_US)
        tier(store, log.clock, EVICT_US)
        assert erasure.rows == 3
        for key in gone:
            log.expected.pop(key, None)
        log.check(topic, range(55))
        every = topic.scan(columns=["key"]).to_arrow().column("key").to_pylist()
        assert not set(every) & set(gone)
        assert sum(map(len, log.expected.values())) == len(every)
        assert store.verify(deep=True).problems == ()


def test_the_filters_of_a_rewritten_object_have_the_keys_that_it_has(tmp_path: Path) -> None:
    """An erased key is in no filter of the merged object any more, and each of the others is in one."""
    log = Log(tmp_path, pa.string(), [at % 30 for at in range(60)], ["on", "merged"])
    keys = pa.array([f"k{number}" for number in range(30)])

    def held(topic: tiered.Topic) -> set[str]:
        """The keys that a filter of the newest objects may hold."""
        found: set[str] = set()
        for split in topic.scan().splits():
            source: Any = split.source
            entry = source.entry
            data = (tmp_path / "bucket" / source.key).read_bytes()[
                entry.tail_position : entry.footer_position
            ]
            filters, (hashes, _) = KeyFilters.read(memoryview(data), len(entry.row_groups)), hashes_of(keys)
            assert filters is not None
            for group in range(len(entry.row_groups)):
                found.update(keys.filter(pa.array(filters.may_hold(group, hashes))).to_pylist())
        return found

    def merged(topic: tiered.Topic) -> int:
        """The records in merged objects."""
        return sum(entry.record_count for entry in entries(topic) if len(entry.segment_ids) > 1)

    with log.open(rules("on")) as store:
        topic = store.topic("t")
        assert held(topic) == set(keys.to_pylist())
        before = merged(topic)
        topic.erase(["k7", "k8"])
        tier(store, log.clock, EVICT_US)
        tier(store, log.clock, EVICT_US)
        assert held(topic) == set(keys.to_pylist()) - {"k7", "k8"}
        assert 0 < merged(topic) < before


def test_an_erasure_reads_the_column_where_filters_are_damaged(tmp_path: Path) -> None:
    """Lost bits would hide records: an erasure finds them all the same, also for many keys at a time."""
    log = Log(tmp_path, pa.string(), [at % 30 for at in range(60)], ["on", "on", "on"])
    with log.open(rules("on")) as store:
        topic = store.topic("t")
        for split in topic.scan().splits():
            source = split.source
            entry, path = source.entry, tmp_path / "bucket" / source.key
            assert entry.footer_position
            data = bytearray(path.read_bytes())
            start = entry.tail_position + 17
            data[start : entry.footer_position] = bytes(entry.footer_position - start)
            path.chmod(0o644)
            path.write_bytes(data)
        assert topic.scan(key="k7", columns=["n"]).to_arrow().column("n").to_pylist() == log.expected["k7"]
        erasure = topic.erase(["k7", "k8"])
        tier(store, log.clock, EVICT_US)
        tier(store, log.clock, EVICT_US)
        assert erasure.rows == 4
        assert topic.scan(key="k7").to_arrow().num_rows == 0


def test_an_erasure_asks_filters_for_a_few_keys_and_the_column_for_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log(tmp_path, pa.string(), [at % 30 for at in range(60)], ["on", "on", "on"])
    read: list[str | None] = []
    plain = erased_rows.read_object

    def watched(*values: Any, **options: Any) -> Any:
        read.append(options.get("key_column"))
        return plain(*values, **options)

    monkeypatch.setattr(erased_rows, "read_object", watched)
    with log.open(rules("on")) as store:
        topic = store.topic("t")
        asked: list[int] = []

        def excluded(self: KeyProbe, data: Any, entry: Any, candidates: list[int], excludes: Any) -> set[int]:
            asked.extend(candidates)
            return set(candidates)

        monkeypatch.setattr(KeyProbe, "excluded", excluded)
        few = topic.erase(["k7"])
        tier(store, log.clock, EVICT_US)
        assert set(read) == {"key"}
        assert asked
        assert few.rows == 0  # what filters say is believed
        asked.clear()
        many = topic.erase([f"k{number}" for number in range(7, 7 + key_probe.VALUES_MAX + 1)])
        tier(store, log.clock, EVICT_US)
        assert asked == []
        assert many.rows == 46


def test_verify_finds_a_filter_that_lacks_a_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under sound checksums, as a writer with a wrong hash would leave it."""
    log = Log(tmp_path, pa.string(), [at % 30 for at in range(60)], ["on", "on", "on"])
    with log.open(rules("on")) as store:
        assert store.verify(deep=True).problems == ()
        monkeypatch.setattr(KeyFilters, "may_hold", lambda self, group, hashes: hashes != hashes)
        found = [str(problem) for problem in store.verify(deep=True).problems]
        assert found
        assert all("the filter of row group 0 lacks a key that the row group has" in text for text in found)


def test_tails_and_topics_without_a_key_have_no_filters(tmp_path: Path, clock: Clock) -> None:
    """A tail is replaced by the whole segment; its rows are found by key as those of the others are."""
    every = stepwise(offload={"after": "4h", "tail_interval": "1s", "key_filter": "on"})
    with open_store(tmp_path / "data", f"file://{tmp_path}/bucket", clock, settings=every) as store:
        plain = store.create_topic("plain", schema=pa.schema([("n", pa.int64())]))
        plain.append({"n": 1})
        plain.roll()
        keyed = store.create_topic("keyed")
        keyed.append(b"1", key=b"a")
        keyed.roll()
        tier(store, clock, OFFLOAD_US)
        keyed.append(b"2", key=b"a")
        keyed.flush()
        store.tierer.tail_pass()  # type: ignore[attr-defined]
        with tiered.open(f"file://{tmp_path}/bucket") as bucket:
            assert [entry.footer_position for entry in entries(bucket.topic("plain"))] == [0]
            whole, tail = entries(bucket.topic("keyed"))
            assert whole.footer_position
            assert (tail.sealed, tail.footer_position) == (False, 0)
            assert bucket.topic("keyed").scan(key=b"a").to_arrow().num_rows == 2


def test_a_repair_writes_an_object_as_its_policy_says(tmp_path: Path, clock: Clock) -> None:
    settings, url = rules("on"), f"file://{tmp_path}/bucket"
    with open_store(tmp_path / "data", url, clock, settings=settings) as store:
        topic = store.create_topic("t")
        for number in range(100):
            topic.append(b"%d" % number, key=b"k%d" % number)
        topic.roll()
        tier(store, clock, OFFLOAD_US)
    with tiered.open(url) as bucket:
        [before] = entries(bucket.topic("t"))
    [lost] = tmp_path.glob(f"bucket/**/{before.name}")
    lost.unlink()
    report = repaired(tmp_path / "data", url, policy_for=settings.policy_for)
    assert [item.result for item in report.repairs] == ["done"]
    with tiered.open(url) as bucket:
        [after] = entries(bucket.topic("t"))
    assert after.name != before.name
    assert after.footer_position
    assert after.row_groups == before.row_groups


@pytest.fixture
def many(tmp_path: Path, clock: Clock) -> Iterator[Any]:
    """The bucket of a topic of 40 objects without a key in common, each with rows of two values that are in all of them."""
    with open_store(tmp_path / "data", f"file://{tmp_path}/bucket", clock, settings=rules("on")) as store:
        topic = store.create_topic("t")
        for number in range(40):
            for at in range(20):
                topic.append(b"%d" % (number * 20 + at), key=b"key-%d" % (number * 20 + at))
            topic.roll()
        tier(store, clock, OFFLOAD_US)
    with tiered.open(f"file://{tmp_path}/bucket") as bucket:
        yield bucket


def requests_of(store: Any, **how: Any) -> tuple[int, int, int]:
    """Rows, requests and bytes of a scan."""
    counts = store.context.tiers.fetch_counters.counts
    before = counts.requests, counts.request_bytes
    rows = store.topic("t").scan(**how).to_arrow().num_rows
    counts = store.context.tiers.fetch_counters.counts
    return rows, counts.requests - before[0], counts.request_bytes - before[1]


def test_a_scan_by_key_asks_once_for_the_filters_of_each_object(many: Any) -> None:
    """And for footer and row group of the object that has the key: wherever it lies, and however far fetching ahead is."""
    filters = sum(entry.footer_position - entry.tail_position for entry in entries(many.topic("t")))
    assert requests_of(many, key=b"nobody") == (0, 40, filters)
    for number in (0, 399, 799):
        rows, requests, size = requests_of(many, key=b"key-%d" % number)
        assert (rows, requests) == (1, 42)
        assert size > filters
    rows, requests, _ = requests_of(many, filter=("key", "in", [b"key-1", b"key-500", b"nobody"]))
    assert (rows, requests) == (2, 43)  # the footer of the first object is known by now
    assert many.context.tiers.fetcher._ahead_bytes_left == 64 << 20


def test_a_scan_with_a_limit_looks_into_few_filters(many: Any) -> None:
    rows, requests, _ = requests_of(many, key=b"key-5", limit=1)
    assert rows == 1
    assert requests <= 6


def test_filters_that_are_gone_send_the_reader_to_a_fresh_head(many: Any, tmp_path: Path) -> None:
    """As when the objects were merged since the scan was planned, and swept."""
    scan = many.topic("t").scan(key=b"key-700")
    for path in sorted((tmp_path / "bucket").rglob("*.parquet"))[10:12]:
        path.unlink()
    with pytest.raises(tiered.CorruptionError, match="are gone"):
        scan.to_arrow()
