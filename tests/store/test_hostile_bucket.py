"""A bucket that somebody else may write to: its documents verify, and say what they like.

Checksums find accidents. Nothing that a name, a number or a text of a bucket says may lead out of the directory of a
store, or take memory that nothing in the bucket is worth.
"""

from __future__ import annotations

import resource
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

import tiered
from tests.support.stores import HOUR_US, values
from tiered.cold.manifest.restores import IntentHolder
from tiered.format.document import decode_document, encode_document
from tiered.format.manifest import GROUP_RECORDS_MAX, Head, ObjectEntry, RowGroup
from tiered.format.manifest_codec import decode_head, encode_head
from tiered.warm.catalog import Catalog
from tiered.warm.filesystem import OsFileSystem


@pytest.fixture
def bucket(tmp_path: Path) -> Path:
    """A bucket with one topic of one object."""
    with tiered.open(tmp_path / "theirs", cold=f"file://{tmp_path}/bucket") as store:
        topic = store.create_topic("orders")
        topic.append_many([b"a", b"b"])
        topic.roll()
        store.tier((store.context.clock() + HOUR_US) // 1000)
    return tmp_path / "bucket"


def folder_of(bucket: Path) -> Path:
    return next(path for path in (bucket / "orders").iterdir())


def change_document(path: Path, **changes: object) -> None:
    path.write_bytes(encode_document(decode_document(path.read_bytes(), where="") | changes))


def files(root: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()}


EVIL = ["../../outside/pwned", "..", "/{root}/other/topics/orders", "a/b", "\x1b[2Jorders", ".hidden", "x\0y"]


@pytest.mark.parametrize(
    ("renamed", "evil"),
    [(False, name) for name in EVIL]
    + [(True, name) for name in EVIL if name != ".."],  # no file is called so
)
def test_no_name_leads_a_restore_out_of_its_directory(
    renamed: bool, evil: str, bucket: Path, tmp_path: Path
) -> None:
    """Neither the name of a folder nor that in a document, not even to another store of this host."""
    with tiered.open(tmp_path / "other") as store:
        store.create_topic("orders").append_many([b"1", b"2", b"3"])
    evil = evil.replace("/{root}", str(tmp_path))
    change_document(folder_of(bucket) / "topic.json", name=evil)
    if renamed:
        shutil.move(bucket / "orders", bucket / quote(evil, safe=""))
    shutil.rmtree(tmp_path / "theirs")
    home = tmp_path / "home"
    before = files(tmp_path / "other")
    if renamed:  # no topic's folder: something else that lies in the bucket
        with tiered.restore(f"file://{bucket}", home / "restored") as store:
            assert store.topics() == []
    else:
        with pytest.raises(tiered.CorruptionError, match=r"topic\.json is of another topic"):
            tiered.restore(f"file://{bucket}", home / "restored")
    assert sorted(path.name for path in tmp_path.iterdir() if path != home) == ["bucket", "other"]
    assert [path.name for path in home.glob("*")] == (["restored"] if renamed else [])
    assert files(tmp_path / "other") == before


def test_a_document_that_becomes_another_topics_while_a_restore_runs_is_refused(
    bucket: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was looked at before; the restore would write into the directory of the other topic."""
    document = folder_of(bucket) / "topic.json"
    begin = IntentHolder.begin

    def and_rename(self: IntentHolder) -> int:
        change_document(document, name="payments")
        return begin(self)

    monkeypatch.setattr(IntentHolder, "begin", and_rename)
    with pytest.raises(tiered.CorruptionError, match=r"topic\.json is of another topic"):
        tiered.restore(f"file://{bucket}", tmp_path / "restored")
    assert not (tmp_path / "restored" / "topics" / "payments").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"partitions": "7"},
        {"partitions": 1 << 40},
        {"partitions": float("nan")},
        {"partitions": float("inf")},
        {"schemas": None},
        {"schemas": {"a": 1}},
        {"timestamp": "nowhere"},
        {"key": ["key"]},
        {"created_us": 10**4000},
        {"created_us": "soon"},
        {"lineage": "high"},
    ],
    ids=str,
)
def test_a_document_of_other_values_is_damaged_and_nothing_else(
    changes: dict[str, object], bucket: Path, tmp_path: Path
) -> None:
    """For readers, for a restore, to a time as well, and for the store that the bucket belongs to."""
    change_document(folder_of(bucket) / "topic.json", **changes)
    url = f"file://{bucket}"
    refused: list[Callable[[], object]] = [
        lambda: tiered.restore(url, tmp_path / "restored"),
        lambda: tiered.restore(url, tmp_path / "restored", at=tiered.open(url).context.clock() // 1000),
    ]
    if "lineage" not in changes:
        refused.append(lambda: tiered.open(url).topic("orders"))
    for act in refused:
        with pytest.raises((tiered.CorruptionError, tiered.UnsupportedFormat)):
            act()
    with tiered.open(tmp_path / "theirs") as store:
        store.topic("orders").append(b"c")
        store.topic("orders").roll()
        store.tier((store.context.clock() + HOUR_US) // 1000)  # what it cannot do is in its report
        assert values(store.topic("orders"))[-1] == b"c"


def test_a_document_of_one_topic_is_none_of_another_on_the_disk(tmp_path: Path) -> None:
    """Its name leads to a directory: that of the other topic would be written to."""
    with tiered.open(tmp_path / "store") as store:
        store.create_topic("a").append(b"a")
        store.create_topic("b").append(b"b")
    shutil.copy(tmp_path / "store/topics/a/topic.json", tmp_path / "store/topics/b/topic.json")
    with pytest.raises(tiered.CorruptionError, match="the document of topic 'a'"):
        Catalog(OsFileSystem(), tmp_path / "store").read_topic("b")


# -- numbers ---------------------------------------------------------------------------------------


@pytest.fixture
def small_memory() -> Iterator[None]:
    """A limit on what this process may take: an allocation of gigabytes fails."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + (2 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def with_entry(bucket: Path, change: Callable[[ObjectEntry, RowGroup], ObjectEntry]) -> None:
    path = next(bucket.rglob("head.json"))
    head = decode_head(path.read_bytes(), where="")
    entry = change(head.inline[0], head.inline[0].row_groups[0])
    changed: Head = replace(head, inline=(entry,), end_offset=entry.end_offset)
    path.write_bytes(encode_head(changed))


def many(count: int) -> Callable[[ObjectEntry, RowGroup], ObjectEntry]:
    return lambda entry, group: replace(
        entry,
        end_offset=count,
        record_count=count,
        row_groups=(replace(group, end_offset=count, record_count=count),),
    )


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs /proc")
@pytest.mark.parametrize(
    "change",
    [
        many(GROUP_RECORDS_MAX + 1),
        many(1 << 33),
        many(1 << 40),
        many((1 << 63) - 1),
        lambda entry, group: replace(entry, bytes=1 << 62),
        lambda entry, group: replace(
            entry,
            bytes=(1 << 40) + entry.bytes,
            tail_position=1 << 40,
            row_groups=(replace(group, length=1 << 40),),
        ),
    ],
    ids=[
        "a record too many",
        "2^33 records",
        "2^40 records",
        "2^63 records",
        "2^62 bytes",
        "row group of 2^40 bytes",
    ],
)
def test_absurd_numbers_of_a_manifest_take_no_memory(
    change: Callable[[ObjectEntry, RowGroup], ObjectEntry], bucket: Path, small_memory: None
) -> None:
    """They contradict what a writer can have made, under valid checksums."""
    with_entry(bucket, change)
    for columns in (["offset"], ["value"], None):
        with tiered.open(f"file://{bucket}") as store, pytest.raises(tiered.CorruptionError):
            for _ in store.topic("orders").scan(columns=columns).to_batches():
                pass


def test_a_document_of_gigabytes_is_not_read(bucket: Path, small_memory: None) -> None:
    """It takes no room on the disk that it comes from: all of it is a hole."""
    with next(bucket.rglob("head.json")).open("r+b") as file:
        file.truncate(1 << 34)
    with (
        tiered.open(f"file://{bucket}") as store,
        pytest.raises(tiered.CorruptionError, match="17179869184 bytes"),
    ):
        store.topic("orders").scan()


def test_the_largest_row_group_that_is_believed_takes_little_memory(bucket: Path, small_memory: None) -> None:
    """Its offsets are in the manifest alone; they are made a batch at a time."""
    count = GROUP_RECORDS_MAX
    with_entry(bucket, many(count))
    with tiered.open(f"file://{bucket}") as store:
        batches = store.topic("orders").scan(columns=["offset"]).to_batches()
        sizes = [batch.num_rows for batch in batches]
    assert sum(sizes) == count
    assert max(sizes) <= 1 << 17
