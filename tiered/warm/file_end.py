"""The writer's side of the end of a segment file: reserved room, and writes that readers see as a whole or not at all.

Readers and tierers in other processes read every block that verifies after the last one. So the bytes of a write must not
verify there before the write can no longer fail:

1. The writer reserves room first, so that most writes without room fail early. The write itself may still fail: on macOS,
   on file systems that copy on write and on thin volumes.
2. A write of several blocks writes the first header last; until then it is zeros. A single block is one write: its checksums
   do not verify until its last byte is in the file.
3. A write that fails before that is cut off. A write whose bytes are all in the file stays, since a reader may have seen it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ..errors import DiskFull
from ..format.block import HEADER_BYTES, Body
from .filesystem import FileSystem

# The room is a quarter of the file, so that small partitions waste little. The seal and a clean close cut it off.
_AHEAD_BYTES_MIN = 64 << 10
_AHEAD_BYTES_MAX = 16 << 20

Blocks = Sequence[tuple[bytes, Body]]
"""The header and the body of each block."""


class FileEnd:
    """Writes at the end of one open file. The caller passes the position of the end, and serialises the calls."""

    def __init__(self, fs: FileSystem, fd: int) -> None:
        self._fs = fs
        self._fd = fd
        # The first bytes of a file are written without a reservation.
        self._room_end = _AHEAD_BYTES_MIN
        self._reserved_end = 0

    def reserve(self, position: int, length: int) -> None:
        """Reserve room for a write and for later ones, because the sync of a file that does not grow writes no metadata.

        Raises
        ------
        DiskFull
            The disk has no room; the file ends at `position`.
        """
        end = position + length
        if end <= self._room_end:
            return
        for room_end in (end + min(max(end // 4, _AHEAD_BYTES_MIN), _AHEAD_BYTES_MAX), end):
            try:
                # Only from `position` on: some systems touch every page of the range.
                self._fs.reserve(self._fd, position, room_end - position)
            except DiskFull:
                # The failed call may have used up the last free space.
                self.cut(position)
                if room_end == end:
                    raise
            else:
                self._room_end = self._reserved_end = room_end
                return

    def promise(self, position: int, length: int) -> None:
        """Reserve room for a write that must find it: as `reserve`, and at the beginning of the file, too."""
        end = position + length
        if end > self._room_end:
            self.reserve(position, length)
        elif end > self._reserved_end:
            try:
                self._fs.reserve(self._fd, position, length)
            except DiskFull:
                self.cut(position)
                raise
            self._reserved_end = end

    def write(self, position: int, blocks: Blocks) -> None:
        """Write blocks. After an error, a part of them may be in the file; see `holds`."""
        (header, body), *others = blocks
        if not others:
            self._fs.write(self._fd, position, [header, *body.parts])
            return
        later_parts: list[Any] = [*body.parts]
        for later_header, later_body in others:
            later_parts += (later_header, *later_body.parts)
        self._fs.write(self._fd, position + HEADER_BYTES, later_parts)
        self._fs.write(self._fd, position, [header])

    def holds(self, position: int, blocks: Blocks) -> bool:
        """Whether the file has all blocks of an interrupted `write`: Ctrl-C came late, or the missing bytes were zeros."""
        header, body = blocks[0]
        for part in (header,) if len(blocks) > 1 else (header, *body.parts):
            expected = bytes(part)
            if os.pread(self._fd, len(expected), position) != expected:
                return False
            position += len(expected)
        return True

    def cut(self, position: int) -> None:
        """Truncate the file to `position`: this drops a failed write and the reserved room."""
        self._fs.truncate(self._fd, position)
        self._room_end = self._reserved_end = position
