"""The choice of the objects that get filters on their key column, and the check of the filters that pyarrow wrote."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from ...base.xxhash64 import Hashes
from ...format.checksum import crc32c
from ...format.manifest import FILTERS_BYTES_MAX, ObjectEntry
from ...format.topic_meta import TopicMeta
from .key_filters import KeyFilters, can_filter, hashes_of

FALSE_POSITIVES = 0.01
"""The most that pyarrow allows; the size of a filter is a power of two, so it is 0.05 to 1 %."""

# pyarrow 24 is the first that writes filters. From 25 on it folds each to the size that its row group needs.
_PYARROW_MIN = 25
# The size of a filter for each of its keys, at most: 9.7 bits, up to the next power of two.
_KEY_BYTES_MAX = 2.5
# Objects without as much are read whole by one request.
_RAW_BYTES_MIN = 1 << 20
# A key of less data than this is hardly larger than its part of the filter once it is compressed.
_RAW_BYTES_A_KEY_MIN = 32
# Fewer keys than these are probably in every object.
_KEYS_MIN = 256
_SAMPLE_KEYS = 64


@dataclass(frozen=True, slots=True)
class KeyFilter:
    """The wish for filters on a column.

    Attributes
    ----------
    always
        Whether to write them even if they would not pay.
    """

    column: str
    always: bool = False

    @classmethod
    def of(cls, meta: TopicMeta, mode: Literal["auto", "on", "off"]) -> KeyFilter | None:
        """Return the wish of a topic's policy; None for no filters."""
        column = None if mode == "off" else meta.key_column
        return None if column is None else cls(column, mode == "on")

    def pays(self, rows: pa.Table, records_max: int) -> bool:
        """Whether an object of at most `records_max` records, which begins with these rows, gets filters."""
        index = rows.schema.get_field_index(self.column)
        # A name with a dot may also be the path of a nested column.
        if not _can_write() or index < 0 or "." in self.column or not rows.num_rows:
            return False
        keys = rows.column(index)
        if not can_filter(keys.type) or records_max * _KEY_BYTES_MAX > FILTERS_BYTES_MAX:
            return False
        if self.always:
            return True
        if rows.nbytes < _RAW_BYTES_MIN or _is_pruned_by_bounds(keys):
            return False
        count = pc.count_distinct(keys).as_py()
        return bool(count >= _KEYS_MIN and rows.nbytes >= _RAW_BYTES_A_KEY_MIN * count)


def _can_write() -> bool:
    return int(pa.__version__.split(".")[0]) >= _PYARROW_MIN


def _is_pruned_by_bounds(keys: pa.ChunkedArray) -> bool:
    """Whether the keys are in order and have bounds in the footer: row groups then have few keys in common."""
    if pt.is_binary(keys.type):
        return False
    before, after = keys[:-1], keys[1:]
    return any(pc.all(compare(before, after)).as_py() for compare in (pc.less_equal, pc.greater_equal))


class WrittenFilters:
    """The filters of an object that is being written.

    Attributes
    ----------
    tail
        The bytes after the last row group, which the writer appends.
    """

    def __init__(self, wish: KeyFilter) -> None:
        self._column = wish.column
        self._samples: list[Hashes] = []
        self.tail = bytearray()

    def options(self, rows: pa.Table) -> dict[str, Any]:
        """Return pyarrow's options for a file that begins with these rows."""
        # A row group of more keys than expected has a filter of more false positives.
        return {"bloom_filter_options": {self._column: {"ndv": 2 * rows.num_rows, "fpp": FALSE_POSITIVES}}}

    def add(self, rows: pa.Table) -> None:
        """Keep a sample of the keys of the next row group."""
        keys = rows.column(self._column)
        chosen = np.linspace(0, len(keys) - 1, min(len(keys), _SAMPLE_KEYS)).astype(np.int64)
        hashes, known = hashes_of(pa.concat_arrays(keys.take(pa.array(chosen)).chunks))
        self._samples.append(hashes[known])

    def proven(self, entry: ObjectEntry, metadata: Any) -> ObjectEntry:
        """Return the object's entry with its filters; without them if a reader would not find or understand them.

        Each filter has to have the sampled keys of its row group.
        """
        tail = memoryview(self.tail)
        filters = KeyFilters.read(tail, len(self._samples))
        if filters is None or not 0 < filters.end <= FILTERS_BYTES_MAX:
            return entry
        names = [metadata.schema.column(index).path for index in range(metadata.num_columns)]
        at = entry.tail_position
        for index, sample in enumerate(self._samples):
            chunk = metadata.row_group(index).column(names.index(self._column))
            if chunk.bloom_filter_offset != at or not filters.may_hold(index, sample).all():
                return entry
            at += chunk.bloom_filter_length
        if at != entry.tail_position + filters.end:
            return entry
        crc, filters_crc = crc32c(tail[filters.end :]), crc32c(tail[: filters.end])
        return replace(entry, footer_position=at, footer_crc=crc, filters_crc=filters_crc)
