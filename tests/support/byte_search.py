"""Which files below a folder hold some bytes, whatever they are packed in."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.ipc as ipc
import pyarrow.parquet as pq
import zstandard

from tiered.warm.segment_reader import SegmentFile


def files_with(folder: Path, needle: bytes) -> list[str]:
    """The files with these bytes, unpacked by what they are: raw, Parquet and its footer, segments, zstd, deflate."""
    return [
        str(path.relative_to(folder))
        for path in sorted(folder.rglob("*"))
        if path.is_file() and any(needle in part for part in _parts(path))
    ]


def _parts(path: Path) -> Iterator[bytes]:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return  # a temporary file that has its name by now
    yield data
    if data[:4] == data[-4:] == b"PAR1":
        yield from _parquet(data)
    elif path.suffix == ".log":
        yield from _segment(path)
    elif data[:4] == b"Obj\x01":
        yield from _blocks_of_avro(data)
    elif data[:4] == b"\x28\xb5\x2f\xfd":
        yield zstandard.ZstdDecompressor().decompress(data)
    elif path.suffix == ".arrow" or ".rows" in path.name:
        with suppress(pa.ArrowException):
            yield _bytes_of(ipc.open_stream(data).read_all())
    else:
        # Ranges in a cache: pages of Parquet, packed by zstd.
        at = data.find(b"\x28\xb5\x2f\xfd")
        while at >= 0:
            with suppress(zstandard.ZstdError):
                yield zstandard.ZstdDecompressor().decompressobj().decompress(data[at:])
            at = data.find(b"\x28\xb5\x2f\xfd", at + 1)


def _parquet(data: bytes) -> Iterator[bytes]:
    file = pq.ParquetFile(io.BytesIO(data))
    yield repr(file.metadata.to_dict()).encode()
    yield _bytes_of(file.read())


def _segment(path: Path) -> Iterator[bytes]:
    segment = SegmentFile.open(path)
    for block in segment.blocks(0, 1 << 62):
        yield repr([column.to_pylist() for column in segment.decode(block).columns]).encode()


def _blocks_of_avro(data: bytes) -> Iterator[bytes]:
    for at in range(len(data)):
        with suppress(zlib.error):
            yield zlib.decompressobj(-15).decompress(data[at:])


def _bytes_of(table: pa.Table) -> bytes:
    return repr(table.to_pylist()).encode()
