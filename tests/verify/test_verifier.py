"""What a verification does beside the damage itself: no false alarms, nothing unknown taken for failed."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from crc32c import crc32c
from typer.testing import CliRunner

import tiered
from tests.support.clock import Clock
from tests.support.damage import damaged, flipped, missing
from tests.support.segments import BODY, header_of
from tests.support.stores import COMPRESS_US, OFFLOAD_US, evict_all, open_store, stepwise, tier
from tests.support.verified_store import Place, segment_parts
from tiered.cli import app
from tiered.cold.object_store.connect import open_object_store
from tiered.cold.object_store.file_store import FileStore
from tiered.engine.host import Host
from tiered.errors import ColdStorageError, CorruptionError
from tiered.format.block import Body, encode_body
from tiered.verify import partitions
from tiered.verify.findings import Findings
from tiered.verify.report import Item
from tiered.verify.segments import check_segment
from tiered.warm.filesystem import OsFileSystem
from tiered.warm.partition_directory import Listing, list_segments
from tiered.warm.segment_writer import SegmentWriter


@pytest.mark.extended
def test_no_false_alarm_beside_a_writer_and_a_tierer(tmp_path: Path) -> None:
    """While records are appended, segments rolled, compressed, offloaded, evicted and expired."""
    clock = Clock()
    rules = {"roll": {"bytes": "4KiB", "age": "off"}, "retention": {"age": "12h"}}
    with open_store(
        tmp_path / "data", f"file://{tmp_path / 'bucket'}", clock, settings=stepwise(**rules)
    ) as store:
        topic = store.create_topic("busy", partitions=2)
        errors: list[BaseException] = []

        def repeat(work: Callable[[], object], times: int) -> None:
            try:
                for _ in range(times):
                    work()
            except BaseException as error:  # noqa: BLE001
                errors.append(error)

        def append() -> None:
            topic.append_many([b"x" * 50] * 20)
            topic.flush()

        def move() -> None:
            tier(store, clock, COMPRESS_US)
            evict_all(store, clock)
            clock.advance(3600)

        threads = [threading.Thread(target=repeat, args=item) for item in ((append, 60), (move, 6))]
        for thread in threads:
            thread.start()
        reports = []
        with tiered.open(tmp_path / "data", read_only=True) as other:
            while any(thread.is_alive() for thread in threads):
                reports.append(other.verify(deep=len(reports) % 2 == 1))
        for thread in threads:
            thread.join()
        assert errors == []
        for report in (*reports, store.verify(deep=True)):
            assert report.problems == (), [str(item) for item in report.problems]
            assert report.unknown == ()
        assert any(report.objects and report.segments > 2 for report in reports)


@pytest.mark.parametrize("hidden_times", [1, 2, 9])
def test_what_one_look_finds_counts_if_the_next_finds_it_too(
    sound: Place, monkeypatch: pytest.MonkeyPatch, hidden_times: int
) -> None:
    """A directory that changes while it is listed can hide a file; one that stays hidden is gone."""
    left = hidden_times

    def listed(directory: Path) -> Listing:
        nonlocal left
        found = list_segments(directory)
        if sys._getframe(1).f_code.co_name == "_segments" and directory == sound.partition(0) and left:
            left -= 1
            return Listing((*found.segments[:2], *found.segments[3:]), found.leftovers)
        return found

    monkeypatch.setattr(partitions, "list_segments", listed)
    problems = sound.verify(deep=False).problems
    assert [item.offsets for item in problems] == ([] if hidden_times == 1 else [(72, 84)])


class Silent:
    """An object store that does not answer."""

    def __init__(self, url: str, _options: Any) -> None:
        self.url = url
        self.conditional_writes = True
        self.asked = 0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "close":
            return lambda: None

        def fail(*_: Any, **__: Any) -> Any:
            self.asked += 1
            raise ColdStorageError("the bucket did not answer", retryable=True)

        return fail


def test_a_bucket_that_does_not_answer_is_unknown_and_asked_once(place: Place) -> None:
    """Local damage is found all the same; records that only the bucket has are not called lost (promise P10)."""
    made: list[Silent] = []

    def open_bucket(url: str, options: Any) -> Any:
        made.append(Silent(url, options))
        return made[-1]

    host = Host(open_bucket=open_bucket)
    with tiered.open(place.data, read_only=True, host=host) as store:
        report = store.verify(deep=True)
        assert report.problems == ()
        assert [item.where for item in report.unknown] == [f"file://{place.bucket}"]
        assert "did not answer" in report.unknown[0].reason
        assert sum(item.asked for item in made) == 1
        with damaged(place.segments()[0], flipped(700)):
            assert [item.where for item in store.verify().problems] == [str(place.segments()[0])]


def test_a_bucket_that_fails_in_the_middle_is_unknown(place: Place) -> None:
    """A failure of one request is not the absence of what it asked for."""

    def open_bucket(url: str, options: Any) -> Any:
        store = open_object_store(url, options)
        real = store.stat

        def stat(key: str) -> Any:
            if key.endswith(".parquet"):
                raise ColdStorageError("503 SlowDown", retryable=True)
            return real(key)

        store.stat = stat  # type: ignore[method-assign]
        store.list = lambda _prefix: iter(())  # type: ignore[method-assign, assignment]
        return store

    with tiered.open(place.data, read_only=True, host=Host(open_bucket=open_bucket)) as store:
        report = store.verify(deep=True)
    assert report.problems == ()
    assert report.unknown


def test_a_bucket_is_verified_by_its_url_alone(sound: Place) -> None:
    with tiered.open(f"file://{sound.bucket}") as store:
        report = store.verify(deep=True)
        assert (report.problems, report.unknown, report.objects) == ((), (), 12)
        with damaged(sound.objects()[0], flipped(100)), damaged(sound.objects(1)[5], missing):
            problems = store.verify(deep=True).problems
    assert [(item.partition, item.offsets) for item in problems] == [(0, (0, 12)), (1, (60, 72))]


def test_a_store_without_a_bucket(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "data") as store:
        topic = store.create_topic("local")
        for _ in range(3):
            topic.append_many([b"x"] * 10)
            topic.roll()
        assert store.verify(deep=True).problems == ()
        paths = sorted((tmp_path / "data/topics/local/0").glob("*.log"))
        with damaged(paths[1], missing):
            problems = store.verify().problems
    assert [(item.item, item.offsets, item.reason) for item in problems] == [
        (Item.LOG, (10, 20), "records are in no tier")
    ]


def test_a_store_that_was_never_written_to_is_sound(tmp_path: Path) -> None:
    with tiered.open(tmp_path / "data", cold=f"file://{tmp_path / 'bucket'}") as store:
        store.create_topic("empty", partitions=3)
        assert store.verify(deep=True).problems == ()


def test_typed_topics_grown_schemas_and_nan_are_sound_in_every_tier(tmp_path: Path) -> None:
    """NaN is the same record on disk and in the bucket, though Arrow says that it equals nothing."""
    clock = Clock()
    with open_store(tmp_path / "data", f"file://{tmp_path / 'bucket'}", clock) as store:
        topic = store.create_topic(
            "typed", schema=pa.schema([("x", pa.float64()), ("tags", pa.list_(pa.string()))])
        )
        topic.append_batch(pa.table({"x": [float("nan"), 1.0, None], "tags": [["a"], None, []]}))
        topic.roll()
        topic.add_columns(pa.schema([("y", pa.float32())]))
        topic.append_batch(pa.table({"x": [2.0], "tags": [["b", None]], "y": [float("nan")]}))
        topic.roll()
        topic.append_batch(pa.table({"x": [3.0]}))
        nested = store.create_topic("nested", schema=pa.schema([("v", pa.list_(pa.float32()))]))
        nested.append_batch(pa.table({"v": [[1.0, float("nan")], None]}))
        nested.roll()
        tier(store, clock, COMPRESS_US)
        tier(store, clock, OFFLOAD_US)
        report = store.verify(deep=True)
        assert report.problems == (), [str(item) for item in report.problems]
        assert report.objects == 3
        for name in ("typed", "nested"):
            segment = min((tmp_path / "data/topics" / name / "0").glob("*.log"))
            assert segment.name.endswith("-1.log"), "it was not compressed"


def test_what_arrow_does_not_allow_is_found_under_checksums_that_are_right(tmp_path: Path) -> None:
    """A value whose end lies in front of its beginning, or beyond the data: a deep look refuses it."""
    arrays = [
        pa.array([1, 2, 3], pa.int64()).cast(BODY.field(0).type),
        pa.nulls(3, pa.binary()),
        pa.array([b"aaaa", b"bbbb", b"cccc"], pa.binary()),
        pa.nulls(3, BODY.field(3).type),
    ]
    body = encode_body(pa.RecordBatch.from_arrays(arrays, schema=BODY))
    parts = [bytes(memoryview(part)) for part in body.parts]
    chunk = bytearray(parts[1])
    place = chunk.find(b"\0\0\0\0\4\0\0\0\10\0\0\0\14\0\0\0")
    assert place > 0, "the offsets of the values are not where they were thought to be"
    chunk[place + 4 : place + 8] = (1 << 20).to_bytes(4, "little")
    tail = parts[2] if len(parts) > 2 else b""
    directory = bytearray(parts[0])
    directory[12:16] = crc32c(tail, crc32c(bytes(chunk))).to_bytes(4, "little")
    hostile = Body(
        body.record_count, body.min_timestamp_us, body.max_timestamp_us, body.codec, body.chunk_count,
        crc32c(bytes(directory)), body.stored_length, body.raw_length, (bytes(directory), bytes(chunk), tail),
    )  # fmt: skip
    look_is_deep_enough(tmp_path, hostile, BODY)


def test_text_that_is_no_text_is_found_under_checksums_that_are_right(tmp_path: Path) -> None:
    """Reads take text as bytes for speed; a deep look wants UTF-8."""
    text = pa.Array.from_buffers(pa.string(), 3, pa.array([b"ab", b"\xff\xfe", b""], pa.binary()).buffers())
    schema = pa.schema([BODY.field(0), pa.field("text", pa.string())])
    stamps = pa.array([1, 2, 3], pa.int64()).cast(BODY.field(0).type)
    body = encode_body(pa.RecordBatch.from_arrays([stamps, text], schema=schema))
    reason = look_is_deep_enough(tmp_path, body, schema)
    assert "column 1 is no valid Arrow data" in reason


def look_is_deep_enough(tmp_path: Path, body: Body, schema: pa.Schema) -> str:
    """A deep look finds what is wrong with a block, a quick one does not read it; return what is wrong."""
    (tmp_path / "0").mkdir()
    writer = SegmentWriter.create(OsFileSystem(), tmp_path / "0", header_of(schema))
    writer.append([body], 2000)
    writer.seal(0)
    writer.close()
    found = {}
    for deep in (False, True):
        findings = Findings()
        check_segment(writer.path, newest=False, end_hint=None, deep=deep, findings=findings)
        found[deep] = findings.problems
    assert [item.offsets for item in found[True]] == [(100, 103)]
    assert found[False] == []
    return found[True][0].reason


# -- the guard -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "error",
    [
        CorruptionError("x"), ValueError("x"), MemoryError(), RecursionError(), OverflowError(), pa.ArrowInvalid("x"),
        pa.ArrowException("x"), OSError("Arrow's"), OSError(5, "Input/output error"), UnicodeDecodeError("utf-8", b"", 0, 1, "x"),
    ],
    ids=repr,
)  # fmt: skip
def test_whatever_damaged_bytes_raise_is_a_problem(error: Exception) -> None:
    findings = Findings()
    with findings.guard(Item.SEGMENT, "a file", position=7, offsets=(1, 2)):
        raise error
    assert [(item.where, item.position, item.offsets) for item in findings.problems] == [
        ("a file", 7, (1, 2))
    ]


@pytest.mark.parametrize(
    "error",
    [
        ColdStorageError("x"),
        tiered.UnsupportedFormat("x"),
        PermissionError(13, "no"),
        OSError(24, "too many files"),
    ],
    ids=repr,
)
def test_what_could_not_be_looked_at_is_unknown(error: Exception) -> None:
    findings = Findings()
    with findings.guard(Item.SEGMENT, "a file"):
        raise error
    assert findings.problems == []
    assert [item.where for item in findings.unknown] == ["a file"]


# -- the command -----------------------------------------------------------------------------------


@pytest.fixture
def command(place: Place) -> Callable[..., Any]:
    def run(*arguments: str) -> Any:
        return CliRunner().invoke(
            app, ["verify", *arguments, "--path", str(place.data)], catch_exceptions=False
        )

    return run


def test_the_command_says_that_all_is_well(command: Callable[..., Any]) -> None:
    result = command()
    assert result.exit_code == 0
    assert "0 problems, 0 unknown; 10 segments" in result.stdout
    assert "--deep reads every byte" in result.stdout
    values = json.loads(command("--deep", "--json").stdout)
    assert (values["ok"], values["deep"], values["problems"]) == (True, True, [])


def test_the_command_ends_with_1_and_a_line_a_problem(command: Callable[..., Any], place: Place) -> None:
    path = place.segments()[2]
    path.write_bytes(flipped(segment_parts(path)["block 0 chunk 0"][0])(path.read_bytes()) or b"")
    assert command().exit_code == 0, "a quick look does not read blocks"
    result = command("--deep")
    assert result.exit_code == 1
    assert f"problem: {path} at byte " in result.stdout
    assert "chunk fails its checksum (offsets 72 to 78); keep the file" in result.stdout
    assert result.stderr.startswith("error: 1 problem found: ")
    assert len(result.stderr.splitlines()) == 1
    problem = json.loads(command("--deep", "--json").stdout)["problems"][0]
    assert (problem["item"], problem["where"], problem["offsets"]) == ("segment", str(path), [72, 78])


def test_the_command_ends_with_1_where_it_could_not_look(
    command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No damage was found, and nobody may take that for all being well."""

    def away(_self: FileStore, _prefix: str) -> Any:
        raise ColdStorageError("the bucket did not answer", retryable=True)

    monkeypatch.setattr(FileStore, "list", away)
    result = command()
    assert result.exit_code == 1
    assert "0 problems, 1 unknown" in result.stdout
    assert result.stderr.startswith("error: not everything could be checked: file://")


def test_the_command_repairs_and_says_what_it_did(command: Callable[..., Any], place: Place) -> None:
    """0 once nothing is left; 1 while something is."""
    for path, part in ((place.segments()[2], "trailer"), (place.segments(1)[3], "block 0 chunk 0")):
        path.write_bytes(flipped(segment_parts(path)[part][0] + 2)(path.read_bytes()) or b"")
    result = command("--deep", "--repair")
    assert result.exit_code == 1
    assert "rebuilt the footer from its blocks: done; the original is kept as " in result.stdout
    assert "refused (its blocks: chunk fails its checksum" in result.stdout
    path.write_bytes(flipped(segment_parts_of(place)[0] + 2)(path.read_bytes()) or b"")
    assert command("--deep", "--repair").exit_code == 0


def segment_parts_of(place: Place) -> tuple[int, int]:
    """The chunk that the test above spoilt; the other partition's twin has it at the same place."""
    return segment_parts(place.segments()[3])["block 0 chunk 0"]


def test_the_command_needs_no_store_that_can_be_opened(command: Callable[..., Any], place: Place) -> None:
    (place.data / "store.json").write_bytes(b"{")
    result = command()
    assert result.exit_code == 1
    assert f"{place.data / 'store.json'} at byte 0: document does not decode" in result.stdout
    assert command("--repair").exit_code == 0


def test_wrong_usage(command: Callable[..., Any], tmp_path: Path) -> None:
    assert "belong to --repair" in command("--rebuild-manifest").stderr
    result = CliRunner().invoke(app, ["verify", "--path", str(tmp_path / "nothing")])
    assert result.exit_code == 1
    assert "there is no store at" in result.stderr
    assert not (tmp_path / "nothing").exists()
