"""The footer of an object: Parquet's metadata, and the checksums of this package in it."""

from __future__ import annotations

import base64
import io
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
from .layout import EXTENTS_KEY, MAGIC, plain_schema, read_extents
from .statistics import CHUNKS_MAX, FooterStatistics

FOOTERS_BYTES_MAX = 64 * 1024 * 1024
_RELEASE_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Footer:
    """A verified and parsed footer.

    Attributes
    ----------
    metadata
        Parquet's metadata.
    extents
        Position, length and CRC32C of the consecutive extents that make up the column chunks.
    bytes
        Encoded size.
    """

    metadata: Any
    schema: pa.Schema
    extents: list[tuple[int, int, int]]
    bytes: int

    def statistics(self) -> FooterStatistics | None:
        """Read the statistics of the row groups; None for too many column chunks."""
        metadata, sink = self.metadata, io.BytesIO()
        if metadata.num_columns * metadata.num_row_groups > CHUNKS_MAX:
            return None
        # Written again, which takes less memory than to keep the encoding in the cache.
        metadata.write_metadata_file(sink)
        encoded = sink.getbuffer()
        return FooterStatistics(encoded[len(MAGIC) : -len(MAGIC) - 4], self.schema)

    def extents_of(self, start: int, length: int) -> Iterator[tuple[int, int, int]]:
        """Yield position, length and CRC32C of the extents that make up exactly this range.

        Raises
        ------
        ValueError
            No extents make it up.
        """
        at, end = start, start + length
        index = bisect_left(self.extents, (start, 0, 0))
        while at < end and index < len(self.extents) and self.extents[index][0] == at:
            yield self.extents[index]
            at += self.extents[index][1]
            index += 1
        if at != end:
            raise ValueError(f"no checksum for bytes {start} to {end}")


class _EmptyFile(SparseFile):
    """A file without fetched ranges that records whether it was read."""

    was_read = False

    def slice(self, start: int, length: int) -> memoryview:  # noqa: ARG002 — the signature of its base
        # No exception: Arrow would keep its traceback, and so the reader, alive for ever.
        self.was_read = True
        return memoryview(b"")


def _check_chunks(metadata: Any) -> None:
    """Raise Arrow's error for contradictory column chunks.

    Arrow's bindings expect no error when `metadata` is asked for such a chunk, and end the process. A read does raise.
    With pre-buffering it checks all chunks before it reads the first byte of the file.
    """
    error, was_read, released = _try_chunks(metadata)
    # A thread of Arrow that releases the file while the interpreter ends would kill the process.
    released.wait(_RELEASE_SECONDS)
    if error is not None and not was_read:
        raise error


def _try_chunks(metadata: Any) -> tuple[Exception | None, bool, threading.Event]:
    """Read all chunks from an empty file; return the error, whether it was read, and an event for its release by Arrow."""
    file, released = _EmptyFile(1 << 62, []), threading.Event()
    weakref.finalize(file, released.set)
    try:
        source = pq.ParquetFile(pa.PythonFile(file, "r"), metadata=metadata, pre_buffer=True)
        source.reader.read_row_groups(list(range(metadata.num_row_groups)), use_threads=False)
    except (pa.ArrowException, OSError) as error:
        # The traceback would keep the file alive.
        return error.with_traceback(None), file.was_read, released
    return None, file.was_read, released


class FooterCache:
    """A cache of parsed footers of recently read objects, bounded by their encoded size; thread-safe."""

    def __init__(self, bytes_max: int = FOOTERS_BYTES_MAX) -> None:
        self._bytes_max = bytes_max
        self._bytes = 0
        self._footers: OrderedDict[tuple[str, int], Footer] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str, tail_crc: int) -> Footer | None:
        """Return the footer of an object, or None."""
        with self._lock:
            footer = self._footers.get((key, tail_crc))
            if footer is not None:
                self._footers.move_to_end((key, tail_crc))
            return footer

    def put(self, key: str, tail_crc: int, footer: Footer) -> None:
        """Cache a footer; evict the least recently used ones."""
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
        # Checked before any read: Arrow allocates memory for the number of rows in the metadata.
        for index in range(metadata.num_row_groups):
            if not 0 <= metadata.row_group(index).num_rows <= GROUP_RECORDS_MAX:
                raise ValueError(f"row group {index} has {metadata.row_group(index).num_rows} rows")
        packed = base64.b64decode((metadata.metadata or {}).get(EXTENTS_KEY, b""), validate=True)
        schema = plain_schema(metadata.schema.to_arrow_schema())
        _check_chunks(metadata)
        return Footer(metadata, schema, read_extents(packed), len(tail))
    except MemoryError:
        raise
    # The bindings document no narrower class for malformed Thrift.
    except Exception as error:  # noqa: BLE001
        raise CorruptionError(f"footer does not decode ({error})", where=where, position=position) from None
