"""Byte ranges of objects: merging them before a fetch, and a sparse file of fetched ranges."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from copy import copy

Span = tuple[int, int]
"""Start and length."""


def coalesce(spans: list[Span], gap_bytes: int) -> list[Span]:
    """Merge spans that are at most `gap_bytes` apart, in order."""
    merged: list[Span] = []
    for start, length in sorted(spans):
        if merged and start - sum(merged[-1]) <= gap_bytes:
            merged[-1] = (merged[-1][0], max(sum(merged[-1]), start + length) - merged[-1][0])
        else:
            merged.append((start, length))
    return merged


class SparseFile:
    """A seekable file that contains only some ranges; reading elsewhere raises `OSError`.

    It has one position, so each reading thread needs a file of its own; see `reopen`.
    """

    closed = False

    def __init__(self, size: int, parts: Sequence[tuple[Span, bytes | memoryview]]) -> None:
        self._size = size
        self._parts = sorted(((span, memoryview(data)) for span, data in parts), key=lambda part: part[0])
        self._starts = [span[0] for span, _ in self._parts]
        self.at = 0

    def reopen(self) -> SparseFile:
        """Return another file over the same bytes, with its own position."""
        other = copy(self)
        other.at = 0
        return other

    def slice(self, start: int, length: int) -> memoryview:
        """Return bytes that lie within one range.

        Raises
        ------
        OSError
            No range contains them.
        """
        index = bisect_right(self._starts, start) - 1
        if index >= 0:
            (first, size), data = self._parts[index]
            if start + length <= first + size:
                return data[start - first : start - first + length]
        raise OSError(f"bytes {start} to {start + length} were not fetched")

    def read(self, length: int = -1) -> memoryview:
        """Return the next bytes, as every file object does."""
        length = max(0, self._size - self.at if length < 0 else min(length, self._size - self.at))
        data = self.slice(self.at, length)
        self.at += length
        return data

    def seek(self, offset: int, whence: int = 0) -> int:
        """Move, and return the position."""
        self.at = (0, self.at, self._size)[whence] + offset
        return self.at

    def tell(self) -> int:
        """Return the position."""
        return self.at

    def readable(self) -> bool:
        """Whether it can be read."""
        return True

    def writable(self) -> bool:
        """Whether it can be written."""
        return False

    def seekable(self) -> bool:
        """Whether it can be read in any order."""
        return True

    def flush(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Mark as closed, which pyarrow checks."""
        self.closed = True
