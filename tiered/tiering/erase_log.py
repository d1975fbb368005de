"""Rows of an erasure that the transaction log has: in its segments on this disk, and in its objects.

A record of the log may have such rows if it lies before the end of the log at the call, or if its rows lie below a horizon.
A writer has written the latter records again: after a crash or a restore it appends all open transactions once more, if their
rows have other offsets than the log says, or if the restore undid records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from uuid import UUID

import pyarrow as pa

from ..cold.fetch.object_reader import read_object
from ..cold.manifest.keys import parse_object_name
from ..cold.upkeep.inspect import rebuild_entry
from ..engine.context import StoreContext
from ..engine.open_topics import OpenTopics
from ..errors import CorruptionError, ObjectNotFound, OffsetOutOfRange
from ..format.erasure import LedgerEntry, horizon_in
from ..format.schema import TRANSACTIONS_TOPIC
from ..reader.read import read_splits
from ..reader.rows import Query
from ..reader.splits import segment_split
from ..warm.segment_reader import SegmentFile
from .partition_handle import PartitionHandle

_COLUMNS = ("offset", "parts")


class LogTraces:
    """Looks for rows of erasures in the transaction log of one open store."""

    def __init__(self, context: StoreContext, topics: OpenTopics) -> None:
        self._context = context
        self._topics = topics
        # By erasure: where the log must begin, as far as objects and local records say, and up to where these were read.
        self._ends: dict[UUID, tuple[int, int]] = {}
        # Objects that were read and have no such row, and whether a manifest named them; objects never change.
        self._clean: set[tuple[UUID, str, bool]] = set()

    def log(self, erasure: LedgerEntry) -> PartitionHandle | None:
        """Return the transaction log, if it may hold rows from before the erasure was called."""
        if not erasure.called_log_end or TRANSACTIONS_TOPIC not in self._topics.topic_names():
            return None
        return PartitionHandle.named(self._topics, TRANSACTIONS_TOPIC, 0)

    def end(self, erasure: LedgerEntry) -> int:
        """Return the least start offset of the log at which no known file of it has rows of an erasure.

        Files are deleted whole, so this is the end of one. Reads what the local log has beyond the last call.

        Raises
        ------
        CorruptionError, UnsupportedFormat, OSError
        """
        end, read = self._ends.get(erasure.id, (erasure.log_end, erasure.log_end))
        log = self.log(erasure)
        if log is None:
            return end
        local = log.local().segments
        for segment in local:
            start = max(read, segment.header.base_offset)
            if start >= segment.end_offset:
                continue
            try:
                rows = _end_of_rows(self._local(log, segment, start), erasure.topic_id, erasure.horizons)
            except OffsetOutOfRange:
                continue  # the log was shortened beyond it meanwhile
            end, read = max(end, rows), segment.end_offset
        self._ends[erasure.id] = end, read
        return max([end, *(item.end_offset for item in local if item.header.base_offset < end)])

    def here(self, erasure: LedgerEntry) -> Iterator[str]:
        """Yield the traces in the log on this disk, one line each; see `Traces.here`."""
        log = self.log(erasure)
        if log is None:
            return
        end, local = self.end(erasure), log.local()
        if local.start_offset < end:
            yield (
                f"the transaction log begins at offset {local.start_offset} and may hold rows up to {end}; "
                "its writer shortens it as a pass asks it to, or whoever opens the store for writing next"
            )
        for segment in local.segments:
            if segment.header.base_offset < min(end, segment.end_offset):
                yield f"{segment.path} may hold rows of old transactions; a pass deletes it"

    def in_bucket(self, erasure: LedgerEntry) -> Iterator[str]:
        """Yield the traces in the objects of the log, one line each; see `Traces.in_bucket`."""
        log = self.log(erasure)
        if log is None:
            return
        manifest = log.manifest
        prefix = manifest.keys.data_prefix
        # Listed first: an object that is published in between is named by the head.
        listed = list(manifest.store.list(prefix))
        loaded = manifest.load()
        entries = () if loaded is None else manifest.entries(loaded.head)
        # All of them at once: a sweep can delete none before the log begins behind them.
        held = [item for item in entries if self._may_hold(erasure, log, item.name, item.base_offset, True)]
        before, read = self._ends.get(erasure.id, (erasure.log_end, erasure.log_end))
        self._ends[erasure.id] = max([before, *(item.end_offset for item in held)]), read
        for entry in held:
            yield f"{manifest.keys.data(entry.name)} may hold rows of old transactions; a pass takes it out of the log"
        named = {item.name for item in entries}
        for info in listed:
            name = info.key.removeprefix(prefix)
            parsed = None if name in named else parse_object_name(name)
            if parsed is not None and self._may_hold(erasure, log, name, parsed.base_offset, False):
                yield f"{info.key} may hold rows of old transactions; a sweep deletes it"

    def _may_hold(
        self, erasure: LedgerEntry, log: PartitionHandle, name: str, base_offset: int, named: bool
    ) -> bool:
        # An orphan may have records that a restore has undone. They end before the ends at the call.
        if base_offset < (erasure.log_end if named else erasure.called_log_end):
            return True
        key = log.manifest.keys.data(name)
        if (erasure.id, key, named) in self._clean:
            return False
        horizons = erasure.horizons if named else erasure.called_horizons
        try:
            end = _end_of_rows(self._in_object(log, key), erasure.topic_id, horizons)
        except ObjectNotFound:
            return False  # swept since
        except CorruptionError:
            return True
        if not end:
            self._clean.add((erasure.id, key, named))
        return end > 0

    def _local(self, log: PartitionHandle, segment: SegmentFile, start: int) -> Iterator[pa.RecordBatch]:
        if "parts" not in segment.header.schema.names:
            return
        split = segment_split(log.meta.name, 0, segment, start)
        yield from read_splits(
            self._context.tiers,
            log.meta,
            [split],
            Query(columns=_COLUMNS),
            check=self._context.lifecycle.check,
        )

    def _in_object(self, log: PartitionHandle, key: str) -> Iterator[pa.RecordBatch]:
        store, schema = log.manifest.store, log.meta.schema
        if "parts" in schema.names:
            yield from read_object(store, key, rebuild_entry(store, key), schema, columns=[*_COLUMNS])


def _end_of_rows(batches: Iterable[pa.RecordBatch], topic_id: UUID, horizons: Sequence[int]) -> int:
    """Return the offset behind the last record with rows of a topic below its horizons; 0 without one."""
    end = 0
    for batch in batches:
        for row in batch.to_pylist():
            for part in row["parts"] or ():
                horizon = horizon_in(horizons, part["partition"])
                if part["topic_id"] == str(topic_id) and part["first_offset"] < horizon:
                    end = row["offset"] + 1
    return end
