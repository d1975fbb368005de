"""The codecs of chunks: none, LZ4 blocks and Zstandard frames. Both compressors release the GIL."""

from __future__ import annotations

import enum
import threading
from typing import Any

import lz4.block
import pyarrow as pa
import zstandard

from ..errors import CorruptionError


class Codec(enum.IntEnum):
    """The compression of a chunk; block headers store its number."""

    NONE = 0
    LZ4 = 1
    ZSTD = 2

    @classmethod
    def of(cls, name: str) -> Codec:
        """Return the codec with this name in settings."""
        return cls[name.upper()]


ZSTD_LEVEL = 3
_local = threading.local()


def compress(codec: Codec, data: Any, level: int = ZSTD_LEVEL) -> Any:
    """Compress one buffer; codec none returns it as it is."""
    if codec is Codec.NONE:
        return data
    if codec is Codec.LZ4:
        return lz4.block.compress(data, store_size=False)
    return _compressor(level).compress(data)


def decompress(codec: Codec, data: Any, raw_length: int) -> pa.Buffer:
    """Decompress one verified chunk to exactly `raw_length` bytes, never more.

    Raises
    ------
    CorruptionError
        The data is not of this codec, or has another length. Callers add the location.
    """
    try:
        if codec is Codec.NONE:
            raw = data if isinstance(data, pa.Buffer) else pa.py_buffer(data)
        elif codec is Codec.LZ4:
            raw = pa.py_buffer(lz4.block.decompress(data, uncompressed_size=raw_length))
        else:
            # The library allocates the declared size, so that is compared first.
            declared = zstandard.frame_content_size(data)
            if declared != raw_length:
                raise CorruptionError(f"chunk declares {declared} bytes instead of {raw_length}")
            raw = pa.py_buffer(_decompressor().decompress(data))
    except (lz4.block.LZ4BlockError, zstandard.ZstdError, ValueError, MemoryError) as error:
        raise CorruptionError(f"chunk does not decompress ({error})") from None
    if raw.size != raw_length:
        raise CorruptionError(f"chunk decompresses to {raw.size} bytes instead of {raw_length}")
    return raw


def _compressor(level: int) -> zstandard.ZstdCompressor:
    # Creating a context takes 100 µs, and threads must not share one.
    cache: dict[int, zstandard.ZstdCompressor] = _local.__dict__.setdefault("compressors", {})
    if level not in cache:
        cache[level] = zstandard.ZstdCompressor(level=level, write_content_size=True)
    return cache[level]


def _decompressor() -> zstandard.ZstdDecompressor:
    decompressor: zstandard.ZstdDecompressor | None = getattr(_local, "decompressor", None)
    if decompressor is None:
        decompressor = _local.decompressor = zstandard.ZstdDecompressor()
    return decompressor
