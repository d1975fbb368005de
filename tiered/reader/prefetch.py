"""Fetching and decoding ahead for the splits of one reader whose records lie in the bucket."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import Self

import pyarrow as pa

from ..cold.fetch.decode_ahead import DecodeAhead
from ..cold.fetch.fetcher import Admission, Fetcher
from ..cold.fetch.object_reader import BATCH_ROWS, Bounds, ObjectRead
from ..format.manifest import ObjectEntry
from ..format.predicate import columns_of
from ..format.row_filter import RowFilter
from ..format.topic_meta import TopicMeta
from .rows import Query, needed_columns
from .splits import ColdSource, Split

# A larger read counts as a scan, which the caches expect to happen once.
NARROW_BYTES = 32 << 20


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
        self._expected = {id(split): split for split in cold}
        self._bytes = sum(split.bytes for split in cold)
        self._reads: dict[int, ObjectRead] = {}
        self._ahead = DecodeAhead(fetcher, map(self._read_of, cold), eager=eager)

    def expects(self, split: Split) -> bool:
        """Whether this split, by identity, is one of them."""
        return self._expected.get(id(split)) is split

    def batches(self, split: Split) -> Iterator[pa.RecordBatch]:
        """Yield a split's rows, including the column ``offset``.

        Raises
        ------
        CorruptionError, ObjectNotFound, ColdStorageError
        """
        read = self._read_of(split)
        yield from read.batches(self._ahead.tables(read), BATCH_ROWS)
        self._reads.pop(id(split), None)

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
