"""Fetching and decoding ahead for the splits of one reader whose records lie in the bucket."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Self

import pyarrow as pa

from ..cold.fetch.decode_ahead import DecodeAhead
from ..cold.fetch.fetcher import Admission, Fetcher, Reservation
from ..cold.fetch.group_rows import Bounds
from ..cold.fetch.key_probe import KeyProbe
from ..cold.fetch.object_reader import BATCH_ROWS, ObjectRead
from ..format.manifest import ObjectEntry
from ..format.predicate import columns_of
from ..format.row_filter import RowFilter
from ..format.topic_meta import TopicMeta
from .rows import Query, needed_columns
from .splits import ColdSource, Split

# A larger read counts as a scan, which the caches expect to happen once.
NARROW_BYTES = 32 << 20
# Objects whose filters are looked into at a time.
_PROBES_MAX = 16


class SplitsAhead:
    """The cold splits of a sequence, which are read in that order; leaving the context cancels the rest.

    Parameters
    ----------
    eager
        Whether the reader probably reads all rows.
    """

    def __init__(
        self, fetcher: Fetcher, meta: TopicMeta, splits: Sequence[Split], query: Query, *, eager: bool
    ) -> None:
        self._fetcher = fetcher
        self._meta = meta
        self._query = query
        cold = [split for split in splits if isinstance(split.source, ColdSource)]
        self._cold = cold
        self._places = {id(split): place for place, split in enumerate(cold)}
        self._bytes = sum(split.bytes for split in cold)
        self._reads: dict[int, ObjectRead] = {}
        # Of the split that is being read, or was read last.
        self._place = 0
        self._ahead = DecodeAhead(fetcher, self._remaining(), eager=eager)
        sought = RowFilter.of(query.predicate, meta.name, 0)
        self._probe = KeyProbe.of(sought, meta.schema, meta.key_column)
        # The probes under way, each with the bytes that were reserved for it, and the first split without one.
        self._probes: deque[tuple[Future[object], int]] = deque()
        self._next_probe = 0
        self._probes_max = _PROBES_MAX if eager else 1
        self._reserved = Reservation()

    def expects(self, split: Split) -> bool:
        """Whether this split, by identity, is one of them."""
        place = self._places.get(id(split))
        return place is not None and self._cold[place] is split

    def batches(self, split: Split) -> Iterator[pa.RecordBatch]:
        """Yield a split's rows, including the column ``offset``.

        Raises
        ------
        CorruptionError, ObjectNotFound, ColdStorageError
        """
        self._place = self._places[id(split)]
        read = self._read_of(split)
        self._probe_ahead()
        yield from read.batches(self._ahead.tables(read), BATCH_ROWS)
        self._reads.pop(id(split), None)

    def _remaining(self) -> Iterator[ObjectRead]:
        """Yield the reads that the reader has not passed; it passes objects in which nothing is wanted without a fetch."""
        for place, split in enumerate(self._cold):
            if place >= self._place:
                yield self._read_of(split)

    def _probe_ahead(self) -> None:
        """Begin to look into the filters of the next objects, on other threads.

        Most of these objects have none of the keys, so it takes a request for each, and their latency adds up otherwise.
        """
        if self._probe is None:
            return
        self._next_probe = max(self._next_probe, self._place + 1)
        while self._probes and self._probes[0][0].done():
            self._fetcher.release(self._reserved, self._probes.popleft()[1])
        while self._next_probe < len(self._cold) and len(self._probes) < self._probes_max:
            read = self._read_of(self._cold[self._next_probe])
            size = read.filters_bytes
            if size:
                if not self._fetcher.reserve(self._reserved, size):
                    return
                # What it raises is raised again by the read itself.
                probe = self._fetcher.submit(partial(getattr, read, "units"))
                if probe is None:
                    return
                self._probes.append((probe, size))
            self._next_probe += 1
        self._probes_max = min(2 * self._probes_max, _PROBES_MAX)

    def _read_of(self, split: Split) -> ObjectRead:
        read = self._reads.get(id(split))
        if read is None:
            read = self._reads[id(split)] = self._plan(split)
        return read

    def _plan(self, split: Split) -> ObjectRead:
        source, query, schema = split.source, self._query, self._meta.schema
        assert isinstance(source, ColdSource)
        entry = source.entry
        needed = needed_columns(schema, query)
        return ObjectRead(
            self._fetcher,
            source.key,
            entry,
            schema,
            Bounds(split.start_offset, split.end_offset),
            columns=["offset", *(name for name in (*schema.names, "timestamp") if name in needed)],
            admission=self._admission(split, entry),
            implied_offsets=True,
            row_filter=RowFilter.of(query.predicate, split.topic, split.partition),
            probe=self._probe,
        )

    def _admission(self, split: Split, entry: ObjectEntry) -> Admission:
        predicate = self._query.predicate
        whole = (
            split.start_offset <= entry.base_offset
            and split.end_offset >= entry.end_offset
            and (predicate is None or columns_of(predicate).isdisjoint(("offset", "timestamp")))
        )
        return Admission.SCAN if whole or self._bytes > NARROW_BYTES else Admission.NARROW

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ahead.__exit__(kind, error, trace)
        self._fetcher.release(self._reserved, self._reserved.bytes)
        for probe, _ in self._probes:
            probe.cancel()
