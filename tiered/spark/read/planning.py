"""The planning of a read: a pinned scan of the topic, divided into tasks of similar size."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.types as pt

from ...cold.manifest.commit import FIRST_LINEAGE
from ...engine.records import OffsetRange
from ...errors import ConfigError, OffsetOutOfRange, TopicNotFound
from ...flight.client.discovery import find_server
from ...opening import open_store
from ...reader.query import select_partitions
from ...reader.scan import Scan
from ...reader.splits import Split, borders
from ...store.interface.store import Store
from ...store.interface.topic import Topic
from ..options import LATEST, LINEAGES, Lineages, Position, SourceOptions

Task = tuple[Split, ...]
"""The splits that one Spark task reads: of one partition, in offset order."""

# A split is cut into pieces of at least this share of a task.
_PIECES_PER_TASK = 16
# The server cuts coarser, as each piece is one request to it.
_REMOTE_PIECES_PER_TASK = 4
# Without failOnDataLoss, planning starts again when retention moves the start offset: at most so often.
_ATTEMPTS = 5


def open_source(options: SourceOptions) -> Store:
    """Open the store of a read for reading. If a writer serves a local store, this connects to the writer.

    Raises
    ------
    ConfigError, CorruptionError, UnsupportedFormat, ColdStorageError, ServerUnavailable
    """
    settings = options.settings()
    path = options.path
    if path is None:
        if options.config is None:
            raise ConfigError("where is the store? Write .load(path) with a local path or s3://bucket/prefix")
        path = settings.store.path
    if "://" not in path and options.cold is None:
        served = find_server(Path(path).absolute(), settings)
        if served is not None:
            return served
    store = open_store(path, cold=options.cold, settings=settings, read_only=True)
    url = None if store.tiers is None else store.tiers.locations.cold_url
    if url is not None and url.startswith("memory:"):
        store.close()
        raise ConfigError(
            f"{url} lies in the memory of one process, and Spark's processes cannot read it: use file:// or s3://"
        )
    return store


def pinned_scan(topic: Topic, options: SourceOptions, columns: Sequence[str]) -> Scan:
    """Pin the snapshot that one ``load()`` shows.

    Raises
    ------
    OffsetOutOfRange
        Offsets that the options name are not in the log, and ``failOnDataLoss`` is on.
    ConfigError, TopicNotFound, CorruptionError, ColdStorageError
    """
    partitions = select_partitions(topic.meta, options.partitions)
    starts = expand(topic, options.starting, partitions, "starting", options.without_match)
    ends = expand(topic, options.ending, partitions, "ending", "latest")
    for attempt in range(_ATTEMPTS):
        try:
            scan = scan_between(topic, options, starts, ends, columns)
            if options.fail_on_data_loss:
                _check_within(topic.name, scan, starts, ends)
            return scan
        except OffsetOutOfRange as error:
            if options.fail_on_data_loss:
                message = f"{error}; set failOnDataLoss to false to read what is there"
                raise OffsetOutOfRange(message, start=error.start, end=error.end) from None
            if attempt == _ATTEMPTS - 1:
                raise
            log = topic.offsets()
            starts = {
                key: max(value, log[key].start) if value >= 0 else value for key, value in starts.items()
            }
    raise AssertionError


def scan_between(
    topic: Topic,
    options: SourceOptions,
    starts: Mapping[int, int],
    ends: Mapping[int, int],
    columns: Sequence[str],
) -> Scan:
    """Pin a snapshot of ranges of offsets, with the filters of a read.

    Parameters
    ----------
    starts, ends
        By partition, end exclusive; a negative offset stands for the bound of the log.

    Raises
    ------
    OffsetOutOfRange
        A range begins before the log.
    ConfigError, CorruptionError, ColdStorageError
    """
    arguments: dict[str, Any] = {
        "partitions": list(starts),
        "start_offset": {key: value for key, value in starts.items() if value >= 0},
        "end_offset": {key: value for key, value in ends.items() if value >= 0},
        "start_timestamp": options.from_timestamp,
        "end_timestamp": options.to_timestamp,
        "key": None if options.key is None else _key(topic, options.key),
        "columns": columns,
    }
    return topic.scan_cut(-(-options.split_bytes // _REMOTE_PIECES_PER_TASK), **arguments)


def expand(
    topic: Topic, position: Position, partitions: Sequence[int], name: str, without_match: str
) -> dict[int, int]:
    """Return an offset for each partition; a negative offset stands for the bound of the log.

    Raises
    ------
    ConfigError
    TopicNotFound
        The offsets belong to a deleted topic of the same name.
    OffsetOutOfRange
        The offsets are past the end that a restored partition shares with the log that they belong to.
    """
    if position.topic_id not in (None, topic.meta.topic_id):
        raise TopicNotFound(
            f"topic {topic.name!r} was deleted and created again since its offsets were taken"
        )
    if isinstance(position.value, Mapping) and position.lineages is not None:
        log = topic.offsets()
        common = common_offsets(topic, position.value, position.lineages, topic.lineages())
        for key, end in common.items():
            if end < position.value[key]:
                reason = restore_message(topic.name, log[key], position.value[key], end)
                message = f"{reason}; leave {LINEAGES} out to start there"
                raise OffsetOutOfRange(message, start=log[key].start, end=log[key].end)
    if isinstance(position.value, Mapping) and set(position.value) != set(partitions):
        raise ConfigError(
            f"the {name} {position.unit}s name the partitions {sorted(position.value)}, this reads {list(partitions)} "
            f"of topic {topic.name!r}; name each of them (-2 is the earliest offset, -1 the latest)"
        )
    if position.unit == "offset":
        return {partition: position.of(partition) for partition in partitions}
    offsets = {}
    for partition in partitions:
        offset = _first_offset(topic, partition, position.of(partition))
        if offset is None and without_match == "error":
            raise ConfigError(
                f"no record of topic {topic.name!r} partition {partition} has timestamp {position.of(partition)} or "
                "later; set startingOffsetsByTimestampStrategy to latest to read nothing of such a partition"
            )
        if offset is None:
            offset = LATEST if name == "ending" else topic.offsets()[partition].end
        offsets[partition] = offset
    return offsets


def common_offsets(
    topic: Topic, offsets: Mapping[int, int], lineages: Lineages, current: Lineages
) -> dict[int, int]:
    """Return the offsets, reduced where a partition was restored to the end that both of its lineages share.

    Parameters
    ----------
    lineages, current
        The epochs of the lineages that the offsets belong to, and of the log's; a partition that is not named has
        `FIRST_LINEAGE`. None: unknown, so the offsets stay.
    """
    common = dict(offsets)
    if lineages is not None and current is not None:
        for key in common.keys() & current.keys():
            epoch = lineages.get(key, FIRST_LINEAGE)
            if epoch != current[key]:
                common[key] = min(common[key], topic.common_end(key, epoch))
    return common


def restore_message(name: str, log: OffsetRange, offset: int, end: int) -> str:
    """Return a message: a restore replaced the records from `end` on, and `offset` is of the log before the restore."""
    return (
        f"topic {name!r} partition {log.partition} was restored: from offset {end} on, its records are not those of the "
        f"log before the restore, to which offset {offset} belongs; the log has {log.start} to {log.end}"
    )


def _first_offset(topic: Topic, partition: int, timestamp_ms: int) -> int | None:
    """Return the first offset with this timestamp or a later one, or None."""
    scan = topic.scan(partition, start_timestamp=timestamp_ms, columns=["offset"])
    for split in scan.splits():
        for batch in scan.read(split):
            return int(batch.column(0)[0].as_py())
    return None


def _check_within(name: str, scan: Scan, starts: Mapping[int, int], ends: Mapping[int, int]) -> None:
    for partition, (start, end) in scan.offsets.items():
        for offset in (starts[partition], ends[partition]):
            if offset > end:
                raise OffsetOutOfRange(
                    f"offset {offset} of topic {name!r} partition {partition} is not there; the log has {start} to {end}",
                    start=start,
                    end=end,
                )


def _key(topic: Topic, text: str) -> Any:
    """Return the text of an option as a value of the key column's type."""
    column = topic.meta.key_column
    kind = None if column is None else topic.schema.field(column).type
    if kind is None or pt.is_binary(kind):
        return text
    try:
        return pa.scalar(text).cast(kind).as_py()
    except pa.ArrowException:
        raise ConfigError(
            f"option key is {text!r}, which is not a value of the key column's type {kind}"
        ) from None


def plan_tasks(splits: Sequence[Split], bytes_max: int, count_min: int = 1) -> list[Task]:
    """Cut large splits and pack small ones into tasks of similar work, of about `bytes_max` each. Pure.

    Where records differ much in size, a task of large records has up to twice `bytes_max`.

    Parameters
    ----------
    splits
        In the order of partitions and offsets.
    count_min
        A hint: the least number of tasks, where there are as many records. Cuts fall between row groups and blocks as
        long as there are enough of them, and inside them only to reach this number.

    Returns
    -------
    list of tasks
        In the order of partitions and offsets. Each offset is in one task, and no task is empty.
    """
    total = sum(split.bytes for split in splits)
    size = max(1, min(bytes_max, -(-total // count_min)))
    tasks: list[Task] = []
    for _, group in groupby(splits, key=lambda split: split.partition):
        tasks += _pack([piece for split in group for piece in _cut(split, size // _PIECES_PER_TASK)], size)
    return _halve_largest(tasks, count_min)


def _pack(pieces: list[Split], size: int) -> Iterator[Task]:
    """Yield the pieces of one partition as tasks of about equal work, one for each `size` bytes.

    The work of a task is half its stored bytes and half its records, since uncompressed bytes are faster to read.
    """
    stored = max(1, sum(piece.bytes for piece in pieces))
    records = max(1, sum(piece.record_count for piece in pieces))
    count = -(-stored // size)
    before = 0

    def run_of(piece: Split) -> int:
        nonlocal before
        work = piece.bytes * records + piece.record_count * stored
        middle = 2 * before + work
        before += work
        return middle * count // (4 * stored * records)

    for _, run in groupby(pieces, key=run_of):
        yield _join_adjacent(run)


def _join_adjacent(pieces: Iterator[Split]) -> Task:
    """Join adjacent pieces of one split again."""
    splits: list[Split] = []
    for piece in pieces:
        last = splits[-1] if splits else None
        if last is not None and last.source is piece.source and last.end_offset == piece.start_offset:
            splits[-1] = replace(last, end_offset=piece.end_offset, bytes=last.bytes + piece.bytes)
        else:
            splits.append(piece)
    return tuple(splits)


def _cut(split: Split, bytes_min: int) -> Iterator[Split]:
    """Yield pieces of a split, of `bytes_min` or more, that begin where a row group or block begins."""
    start, size = split.start_offset, 0
    if split.bytes > bytes_min:
        for offset, length in borders(split):
            if offset >= split.end_offset:
                break
            if offset > start and size >= bytes_min:
                yield replace(split, start_offset=start, end_offset=offset, bytes=size)
                start, size = offset, 0
            # Row groups before the split do not count, but for the one with the split's start.
            size = length if offset <= split.start_offset else size + length
    if start == split.start_offset:
        yield split
    else:
        yield replace(split, start_offset=start, bytes=size)


def _halve_largest(tasks: list[Task], count_min: int) -> list[Task]:
    """Halve the largest tasks until there are `count_min`, or each has one record."""

    def entry(task: Task) -> tuple[int, int, int, int, Task]:
        records = sum(split.record_count for split in task)
        size = sum(split.bytes for split in task)
        return (-size if records > 1 else 1, -records, task[0].partition, task[0].start_offset, task)

    if len(tasks) >= count_min:
        return tasks
    heap = [entry(task) for task in tasks]
    heapq.heapify(heap)
    while heap and len(heap) < count_min and heap[0][1] < -1:
        task = heapq.heappop(heap)[-1]
        middle = (task[0].start_offset + task[-1].end_offset) // 2
        for low, high in ((task[0].start_offset, middle), (middle, task[-1].end_offset)):
            parts = tuple(
                split.clip(low, high)
                for split in task
                if split.start_offset < high and split.end_offset > low
            )
            heapq.heappush(heap, entry(parts))
    return sorted((item[-1] for item in heap), key=lambda task: (task[0].partition, task[0].start_offset))
