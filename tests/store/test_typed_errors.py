"""Numbers as NumPy has them are taken like Python's own; what the disk refuses is an error of this package."""

from __future__ import annotations

import errno
import os
import re
import resource
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tiered
from tests.support.clock import Clock
from tests.support.stores import open_store, stepwise


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[tiered.Store]:
    with open_store(tmp_path / "data", None, clock) as store:
        yield store


@pytest.mark.parametrize("value", [5, np.int64(5), np.int8(5), 5.0])
def test_a_key_column_takes_the_numbers_that_others_take(store: tiered.Store, value: Any) -> None:
    """And places them as the integer that they are."""
    schema = pa.schema([("id", pa.int64()), ("other", pa.int64())])
    topic = store.create_topic("t", schema=schema, key="id", partitions=4)
    [batch] = topic.append_batch(pa.table({"id": [5], "other": [1]}))
    assert topic.append({"id": value, "other": value}).partition == batch.partition
    assert topic.producer("p").append({"id": value, "other": value}).partition == batch.partition
    assert topic.append({"id": 1}, key=np.int64(5)).partition == batch.partition
    assert topic.scan(key=5).to_arrow()["other"].to_pylist() == [1, 5, 5]


def test_offsets_of_numpy_delete_as_others(store: tiered.Store) -> None:
    topic = store.create_topic("t")
    topic.append_many([b"x"] * 12)
    topic.delete_before(np.int64(3))  # type: ignore[arg-type]
    assert topic.offsets()[0].start == 3
    for wrong in (3.0, True, "3", -1, np.int64(13)):
        with pytest.raises(tiered.OffsetOutOfRange, match="3 to 12"):
            topic.delete_before(wrong)  # type: ignore[arg-type]


def test_a_disk_that_fails_under_a_new_topic_is_named(
    store: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> int:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", fail)
        with pytest.raises(
            tiered.TieredError, match=r"the disk failed \(Input/output error\) at .*topic.json"
        ):
            store.create_topic("t")
    store.create_topic("t").append(b"x", sync=True)


@pytest.mark.parametrize("name", ["delete_before", "pause", "resume", "add_partitions"])
def test_a_disk_that_fails_under_another_change_is_named(
    name: str, store: tiered.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same call does it once the disk is well."""
    topic = store.create_topic("t")
    topic.append_many([b"x"] * 3)
    topic.flush()
    if name == "resume":
        store.pause("t")
    changes: dict[str, Callable[[], object]] = {
        "delete_before": lambda: topic.delete_before(2),
        "pause": lambda: store.pause("t"),
        "resume": lambda: store.resume("t"),
        "add_partitions": lambda: topic.add_partitions(2),
    }

    def fail(*arguments: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        patch.setattr(os, "fdatasync", fail)
        with pytest.raises(
            tiered.TieredError, match=r"the disk failed \(Input/output error\) at .*/topics/t"
        ):
            changes[name]()
    if name != "resume":  # by its first call
        changes[name]()
    assert topic.offsets()[0].start == (2 if name == "delete_before" else 0)
    assert store.resume("t") == (name == "pause")
    assert topic.partitions == (2 if name == "add_partitions" else 1)


def test_a_pass_without_a_descriptor_left_says_so(store: tiered.Store) -> None:
    """Whichever file it is for which none is left: the limit rises until a pass gets through."""
    store.create_topic("t").append(b"x", sync=True)
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    for limit in range(3, 1000):
        resource.setrlimit(resource.RLIMIT_NOFILE, (limit, before[1]))
        try:
            store.tier()
            break
        except tiered.Backpressure as error:
            assert "ulimit -n" in str(error)  # noqa: PT017
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, before)
    assert limit > 3
    assert store.tier().failed == ()


READS: dict[str, Callable[[tiered.Store], object]] = {
    "topics": lambda store: store.topics(),
    "scan": lambda store: store.topic("t").scan().to_arrow(),
    "point read": lambda store: list(store.topic("t").read(offset=1, limit=1)),
    "offsets": lambda store: store.topic("t").offsets(),
    "snapshot": lambda store: store.snapshot(["t"]).scan("t").to_arrow(),
    "consumer": lambda store: store.topic("t").consumer("c").poll(1),
    "append": lambda store: store.topic("t").append(b"x", sync=True),
    "delete_before": lambda store: store.topic("t").delete_before(1),
    "plan": lambda store: store.plan(),
    "pass": lambda store: store.tier(),
}


@pytest.mark.parametrize("refused", ["open", "stat", "listdir", "pread", "fdatasync"])
@pytest.mark.parametrize("mmap", [True, False])
@pytest.mark.parametrize("mode", ["writer", "reader", "tierer"])
def test_a_disk_that_fails_under_a_read_is_named(
    mode: str, mmap: bool, refused: str, tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever call it refuses: opening, recovering, reading and moving say which file, and keep the number."""
    path, settings = tmp_path / "data", stepwise(store={"mmap": mmap})
    with open_store(path, None, clock, settings=settings) as store:
        topic = store.create_topic("t")
        for _ in range(2):
            topic.append_many([b"x"] * 3)
            topic.roll()
        topic.append_many([b"x"] * 3)
        topic.flush()
        topic.consumer("c").close()
    options = {"writer": {}, "reader": {"read_only": True}, "tierer": {"tierer": True}}[mode]
    plain = getattr(os, refused)
    files = re.compile(rf"{re.escape(str(path))}/.*(\.log|\.json|/topics|/0)")

    def fail(place: Any, *arguments: Any, **named: Any) -> Any:
        name = os.fspath(Path(f"/proc/self/fd/{place}").readlink() if isinstance(place, int) else place)
        if files.fullmatch(name) and not (refused == "open" and arguments[0] & os.O_CREAT):
            raise OSError(errno.EIO, os.strerror(errno.EIO), name)
        return plain(place, *arguments, **named)

    found = {}
    for name, read in READS.items():
        with monkeypatch.context() as patch:
            patch.setattr(os, refused, fail)
            with (
                suppress(tiered.TieredError),
                open_store(path, None, clock, settings=settings, **options) as store,
            ):
                read(store)
        with (
            open_store(path, None, clock, settings=settings, **options) as store,
            monkeypatch.context() as patch,
        ):
            patch.setattr(os, refused, fail)
            try:
                read(store)
            except tiered.TieredError as error:
                found[name] = error
    for name in ("scan", "point read", "offsets", "snapshot", "consumer"):
        error = found[name]
        assert isinstance(error, tiered.FileUnreadable)
        assert error.errno == errno.EIO
        assert files.fullmatch(error.where)
