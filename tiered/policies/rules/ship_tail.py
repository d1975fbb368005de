"""What the tail of a segment is in the bucket: large ones go in pieces, and older small ones are joined. Pure.

A piece is of whole blocks and has at most `TAIL_BYTES_MAX` of the segment, unless one block has more. It is published by a
commit of its own, with the facts of its own end. So no tail waits for a place for longer than a piece takes, and a crash
undoes no more than one.

A tail is shipped every few seconds, so a segment would become thousands of objects before its seal replaces
them by one. A new tail therefore takes the ones right before it along where enough of them are as small as
it: their records are on the disk, and one larger object costs no request more than a small one.

By the level of a tail, the logarithm of its records to the base `FANOUT`: once `FANOUT` - 1 tails of its
level or a lower one lie right before a new tail, it replaces them, and what that makes is looked at again.
So at most `FANOUT` - 1 tails of each level are left, 27 in an hour of one a second. At a steady rate each
record is uploaded less than once a level, 3.6 times in that hour, and once more with the whole segment.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ..cost import MULTIPART_BYTES

FANOUT = 8
# One part of an upload, so that a piece takes no others along, see `extended_base`.
TAIL_BYTES_MAX = MULTIPART_BYTES


class Tail(NamedTuple):
    """A published piece of a segment, or one that is about to be."""

    base_offset: int
    end_offset: int
    bytes: int


def extended_base(tails: Sequence[Tail], fresh: Tail, bytes_max: int = MULTIPART_BYTES) -> int:
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
