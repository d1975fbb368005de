"""Calls that append more than one write takes, and fail in between: the error names what was appended."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

import tiered
from tests.support.disks import FailingDisk
from tests.support.stores import stepwise
from tiered.engine.host import Host
from tiered.errors import DiskFull

ROWS = 60
# Runs of the length of a segment, of a few blocks each.
SETTINGS = stepwise({"block_bytes": "4KiB"}, roll={"bytes": "16KiB", "age": "off"})


class RunningOut(FailingDisk):
    """Has room for so many writes.

    Attributes
    ----------
    left
    """

    def __init__(self) -> None:
        super().__init__(self._count)
        self.left = 1 << 30

    def _count(self, name: str, what: object) -> None:
        if name == "write":
            self.left -= 1
            if self.left < 0:
                raise DiskFull("no room (injected)")


def rows(count: int = ROWS) -> list[bytes]:
    return [b"%04d" % number * 200 for number in range(count)]


CALLS: dict[str, Callable[[tiered.Topic], object]] = {
    "a batch": lambda topic: topic.append_batch(pa.table({"value": rows()}), partition=0),
    "a batch of many keys": lambda topic: topic.append_batch(
        pa.table({"key": [b"%d" % i for i in range(ROWS)], "value": rows()})
    ),
    "batches, one after the other": lambda topic: topic.append_batch(
        pa.RecordBatchReader.from_batches(
            pa.schema([("value", pa.binary())]),
            [pa.RecordBatch.from_pydict({"value": rows(20)}) for _ in range(3)],
        )
    ),
    "values": lambda topic: topic.append_many([b"%04d" % number * 40 for number in range(256)]),
}


def named(error: tiered.TieredError) -> dict[int, list[tuple[int, int]]]:
    """What an error names, by partition."""
    found: dict[int, list[tuple[int, int]]] = {}
    for start, end, partition in re.findall(r"(\d+) to (\d+) of partition (\d+)", str(error)):
        found.setdefault(int(partition), []).append((int(start), int(end)))
    return found


def there(topic: tiered.Topic) -> dict[int, list[tuple[int, int]]]:
    return {item.partition: [(item.start, item.end)] for item in topic.offsets().values()}


@pytest.mark.extended
@pytest.mark.parametrize("name", CALLS)
def test_the_error_names_the_offsets_that_were_appended(name: str, tmp_path: Path) -> None:
    """Exhaustive over the writes: nothing else is there; and it goes on behind it, all of it, when there is room."""
    room, failed, partly = 0, True, 0
    while failed:
        disk = RunningOut()
        with tiered.open(tmp_path / str(room), settings=SETTINGS, host=Host(fs=disk)) as store:
            topic = store.create_topic("t", partitions=2)
            for partition in (0, 1):  # opened
                topic.append(b"first", partition=partition, sync=True)
            disk.left = room
            error = _refusal(CALLS[name], topic)
            disk.left, failed = 1 << 30, error is not None
            if error is not None:
                appended = {
                    partition: [(1, end)] for partition, [(_, end)] in there(topic).items() if end > 1
                }
                assert named(error) == appended
                partly += bool(appended)
            before = sum(end for [(_, end)] in there(topic).values())
            CALLS[name](topic)
            assert sum(end for [(_, end)] in there(topic).values()) == before + (
                256 if "values" in name else 60
            )
        room += 1
    assert partly > 3


def _refusal(call: Callable[[tiered.Topic], object], topic: tiered.Topic) -> DiskFull | None:
    try:
        call(topic)
    except DiskFull as error:
        return error
    return None


def test_over_the_network_too(tmp_path: Path) -> None:
    """There a batch has the numbers of a producer, and may be appended in part."""
    disk = RunningOut()
    with tiered.open(tmp_path / "data", settings=SETTINGS, host=Host(fs=disk)) as store:
        with store.serve("127.0.0.1:0") as server, tiered.open(server.location) as client:
            topic = client.create_topic("t")
            topic.append(b"first", sync=True)
            disk.left = 8
            with pytest.raises(DiskFull) as caught:
                CALLS["a batch"](topic)
            disk.left = 1 << 30
        end = store.topic("t").offsets()[0].end
        assert named(caught.value) == {0: [(1, end)]}
        assert 1 < end < ROWS


def test_a_batch_of_a_producer_goes_in_whole(tmp_path: Path) -> None:
    """Exhaustive over the writes, in process and over the network: all of its blocks are there, or none."""
    settings = stepwise({"block_bytes": "4KiB"})
    room, failed, refused = 0, True, 0
    while failed:
        failed, disk = False, RunningOut()
        with (
            tiered.open(tmp_path / str(room), settings=settings, host=Host(fs=disk)) as store,
            store.serve("127.0.0.1:0") as server,
            tiered.open(server.location) as client,
        ):
            topic = store.create_topic("t")
            there = client.topic("t")
            data = pa.table({"value": rows()})
            producers = [topic.producer("p"), there.producer("q")]
            for append in (*(producer.append_batch for producer in producers), there.append_batch):
                before = topic.offsets()[0].end
                disk.left = room
                error = _refusal(append, data)
                disk.left = 1 << 30
                end = topic.offsets()[0].end
                assert end - before == (0 if error else ROWS)
                if error is not None:
                    failed, refused = True, refused + 1
                    assert named(error) == {}
                    append(data)
                    assert topic.offsets()[0].end - before == ROWS
            blocks = topic.opened.writers[0].view().active_index
            assert len(blocks) >= 3 * 10
        room += 1
    assert refused >= 3


def test_a_batch_of_a_producer_that_is_longer_than_a_run_names_what_stayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the same call again appends the rest."""
    monkeypatch.setattr("tiered.hot.block_writer.RUN_BYTES_MAX", 16 << 10)
    disk = RunningOut()
    settings = stepwise({"block_bytes": "4KiB"})
    with tiered.open(tmp_path, settings=settings, host=Host(fs=disk)) as store:
        topic = store.create_topic("t")
        producer = topic.producer("p")
        disk.left = 5
        error = _refusal(lambda _: producer.append_batch(pa.table({"value": rows()})), topic)
        assert error is not None
        disk.left = 1 << 30
        end = topic.offsets()[0].end
        assert 0 < end < ROWS
        assert named(error) == {0: [(0, end)]}
        assert producer.append_batch(pa.table({"value": rows()})) == [(0, 0, ROWS)]
        assert topic.scan(columns=["value"]).to_arrow()["value"].to_pylist() == rows()
