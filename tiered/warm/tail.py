"""The end of a segment file: room ahead of it, and writes of which nobody sees anything before all is there.

Readers and tierers of other processes take for a block whatever verifies, at the place where the last one ends. So
nothing may verify there before the write that it is part of can no longer fail:

1. Room is asked for first, which refuses early what does not fit. It is no proof that it fits: on macOS, on file
   systems that copy on write and on thin volumes the write itself finds out.
2. Of several blocks all bytes but the first header are written; that header, which until then is zeros, comes last.
   One block is one write: until its last byte is there, its checksums do not hold.
3. What fails before that is cut off. What is all there by then has been seen, perhaps, and stays.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ..errors import DiskFull
from ..format.block import HEADER_BYTES, Body
from .filesystem import FileSystem

# A quarter of the file, so that small partitions waste little; given back when the segment is sealed or closed.
_AHEAD_BYTES_MIN = 64 << 10
_AHEAD_BYTES_MAX = 16 << 20

Blocks = Sequence[tuple[bytes, Body]]
"""Headers, and the rest of each block."""


class Tail:
    """Writes at the end of one open file. The caller says where that is, and serialises the calls."""

    def __init__(self, fs: FileSystem, fd: int) -> None:
        self._fs = fs
        self._fd = fd
        self._room_end = _AHEAD_BYTES_MIN

    def reserve(self, position: int, length: int) -> None:
        """Make room for a write, and keep zeros ahead: a sync of a file that need not grow has no metadata to write.

        Raises
        ------
        DiskFull
            There is none; the file ends at `position`.
        """
        end = position + length
        if end <= self._room_end:
            return
        for wanted in (end + min(max(end // 4, _AHEAD_BYTES_MIN), _AHEAD_BYTES_MAX), end):
            try:
                # From here on alone: some systems look at every page of the range.
                self._fs.reserve(self._fd, position, wanted - position)
            except DiskFull:
                # It may have taken all that was left.
                self.cut(position)
                if wanted == end:
                    raise
            else:
                self._room_end = wanted
                return

    def put(self, position: int, blocks: Blocks) -> None:
        """Write blocks, whole or, after an error, in part; see `holds`."""
        (header, body), *others = blocks
        if not others:
            self._fs.write(self._fd, position, [header, *body.parts])
            return
        rest: list[Any] = [*body.parts]
        for other, its_body in others:
            rest += (other, *its_body.parts)
        self._fs.write(self._fd, position + HEADER_BYTES, rest)
        self._fs.write(self._fd, position, [header])

    def holds(self, position: int, blocks: Blocks) -> bool:
        """Whether blocks whose `put` was broken off are all there: Ctrl-C came late, or what lacked were zeros."""
        header, body = blocks[0]
        for part in (header,) if len(blocks) > 1 else (header, *body.parts):
            wanted = bytes(part)
            if os.pread(self._fd, len(wanted), position) != wanted:
                return False
            position += len(wanted)
        return True

    def cut(self, position: int) -> None:
        """End the file here: what was written in vain, and the room, is given back."""
        self._fs.truncate(self._fd, position)
        self._room_end = position
