"""Numbers as NumPy has them are taken like Python's own; what the disk refuses is an error of this package."""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import tiered
from tests.support.clock import Clock
from tests.support.stores import open_store


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
