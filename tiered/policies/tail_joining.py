"""The joining of tails: which small tails of a segment a new tail replaces in the bucket. Pure.

A tail is shipped every few seconds, so a segment would become thousands of objects before its seal replaces them by one.
A new tail therefore replaces the tails right before it if enough of them are small. Their records are still on the disk,
and one larger object takes no more requests than a small one.

The level of a tail is the logarithm of its record count to the base `FANOUT`, rounded down. If at least `FANOUT` - 1
tails of its level or lower lie directly before a new tail, one object replaces them all, and the check is repeated for
that object. So at most `FANOUT` - 1 tails of each level are left: 27 after an hour of one a second. At a steady rate each
record is uploaded less than once a level: 3.6 times in that hour, and once more with the whole segment.

A large tail is cut into ranges by the handler, `tiering.publish_actions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from .cost import MULTIPART_BYTES

FANOUT = 8
TAIL_BYTES_MAX = MULTIPART_BYTES
"""A longer tail is shipped in ranges of about this size.

A range is one part of an upload, and as large as joining allows, so it replaces no earlier tail.
"""


class ShippedTail(NamedTuple):
    """A published range of a segment, or one that is about to be published."""

    base_offset: int
    end_offset: int
    bytes: int


def extended_base(tails: Sequence[ShippedTail], fresh: ShippedTail, bytes_max: int = MULTIPART_BYTES) -> int:
    """Return where the object for `fresh` is to begin, so that it replaces the last ones of `tails`.

    Parameters
    ----------
    tails
        What is published of the segment, in offset order, and ends where `fresh` begins.
    bytes_max
        Nothing is joined to more than this: an upload stays one request, and short.
    """
    left, base, size = list(tails), fresh.base_offset, fresh.bytes
    while True:
        level = _level(fresh.end_offset - base)
        run = 0
        while run < len(left) and _level(left[-1 - run].end_offset - left[-1 - run].base_offset) <= level:
            run += 1
        if run < FANOUT - 1:
            return base
        taken = 0
        while run and left and size + left[-1].bytes <= bytes_max:
            tail = left.pop()
            base, size, run, taken = tail.base_offset, size + tail.bytes, run - 1, taken + 1
        if not taken or run:
            return base


def tail_reason(records: int) -> str:
    """Say why a tail of so many records is shipped."""
    return f"{records} durable {'record is' if records == 1 else 'records are'} not in the bucket"


def start_reason(start_offset: int) -> str:
    """Say why a tail of no records is shipped."""
    return f"the bucket does not know that the log begins at offset {start_offset}"


def _level(records: int) -> int:
    level = 0
    while records >= FANOUT:
        records //= FANOUT
        level += 1
    return level
