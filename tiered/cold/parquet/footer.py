"""The end of an object, parsed: Parquet's metadata and our checksums in it."""

from __future__ import annotations

import base64
import threading
import weakref
from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from ...errors import CorruptionError
from ...format.manifest import GROUP_RECORDS_MAX
from ..object_store.ranges import SparseFile
from .layout import EXTENTS_KEY, plain_schema, read_extents

FOOTERS_BYTES_MAX = 64 * 1024 * 1024
_LET_GO_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Footer:
    """A verified and parsed tail: Parquet's metadata, and the pieces that the column chunks consist of."""

    metadata: Any
    schema: pa.Schema
    extents: list[tuple[int, int, int]]
    bytes: int

    def extents_of(self, start: int, length: int) -> Iterator[tuple[int, int, int]]:
        """Yield position, length and CRC32C of the pieces that make up exactly this range.

        Raises
        ------
        ValueError
            The pieces do not add up to it.
        """
        at, end = start, start + length
        index = bisect_left(self.extents, (start, 0, 0))
        while at < end and index < len(self.extents) and self.extents[index][0] == at:
            yield self.extents[index]
            at += self.extents[index][1]
            index += 1
        if at != end:
            raise ValueError(f"no checksum for bytes {start} to {end}")


class _Nothing(SparseFile):
    """A file of which nothing was fetched; it notes when it is asked for bytes."""

    asked = False

    def slice(self, start: int, length: int) -> memoryview:  # noqa: ARG002 — as its base has it
        # Not an error of Python: its traceback, kept inside of Arrow, would keep the reader alive for ever.
        self.asked = True
        return memoryview(b"")


def _check_chunks(metadata: Any) -> None:
    """Raise what Arrow makes of column chunks that contradict themselves.

    Asking `metadata` for such a chunk ends the process, as the bindings expect no exception there. A read does
    raise, and with pre-buffering it looks at all chunks before it asks the file for the first byte.
    """
    error, asked, gone = _try_chunks(metadata)
    # A thread of Arrow's that lets go of the file while the interpreter ends would end the process.
    gone.wait(_LET_GO_SECONDS)
    if error is not None and not asked:
        raise error


def _try_chunks(metadata: Any) -> tuple[Exception | None, bool, threading.Event]:
    """Read all chunks of nothing: return the error, whether bytes were asked for, and what tells that Arrow is done."""
    nothing, gone = _Nothing(1 << 62, []), threading.Event()
    weakref.finalize(nothing, gone.set)
    try:
        file = pq.ParquetFile(pa.PythonFile(nothing, "r"), metadata=metadata, pre_buffer=True)
        file.reader.read_row_groups(list(range(metadata.num_row_groups)), use_threads=False)
    except (pa.ArrowException, OSError) as error:
        # Its traceback would keep the file.
        return error.with_traceback(None), nothing.asked, gone
    return None, nothing.asked, gone


class FooterCache:
    """Parsed footers of recently read objects, bounded by their encoded size; safe among threads."""

    def __init__(self, bytes_max: int = FOOTERS_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._footers: OrderedDict[tuple[str, int], Footer] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str, tail_crc: int) -> Footer | None:
        """Return the footer of an object, if it is known."""
        with self._lock:
            found = self._footers.get((key, tail_crc))
            if found is not None:
                self._footers.move_to_end((key, tail_crc))
            return found

    def put(self, key: str, tail_crc: int, footer: Footer) -> None:
        """Keep a footer; the least recently used ones make room."""
        with self._lock:
            old = self._footers.pop((key, tail_crc), None)
            self._footers[key, tail_crc] = footer
            self._bytes += footer.bytes - (old.bytes if old else 0)
            while self._bytes > self._bytes_max and self._footers:
                self._bytes -= self._footers.popitem(last=False)[1].bytes


def parse_footer(tail: memoryview, *, where: str, position: int | None = None) -> Footer:
    """Parse the verified end of an object, from its page index or footer on.

    Raises
    ------
    CorruptionError
    """
    try:
        metadata = pq.read_metadata(pa.BufferReader(tail))
        # Before anything is read by it: Arrow sets memory aside for as many rows as it says.
        for index in range(metadata.num_row_groups):
            if not 0 <= metadata.row_group(index).num_rows <= GROUP_RECORDS_MAX:
                raise ValueError(f"row group {index} has {metadata.row_group(index).num_rows} rows")
        packed = base64.b64decode((metadata.metadata or {}).get(EXTENTS_KEY, b""), validate=True)
        schema = plain_schema(metadata.schema.to_arrow_schema())
        _check_chunks(metadata)
        return Footer(metadata, schema, read_extents(packed), len(tail))
    except MemoryError:
        raise
    # The bindings promise no narrower class for what Thrift cannot read.
    except Exception as error:  # noqa: BLE001
        raise CorruptionError(f"footer does not decode ({error})", where=where, position=position) from None
