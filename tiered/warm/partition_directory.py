"""A partition's directory: which segment files it holds, and its start offset.

The files are the truth; no second catalogue can disagree with them. A name is
``<base offset, 20 digits>-<generation>.log``. Where a re-encoding left two generations of one base
offset, the higher is the segment and the lower a leftover.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..errors import CorruptionError
from ..format.document import decode_document, encode_document
from .filesystem import FileSystem, NoRoom, read_whole, write_atomically
from .writer_requests import REQUEST_FILE

_NAME = re.compile(r"([0-9]{20})-([0-9]{1,9})\.log")
START_FILE = "start.json"
FENCED_FILE = "fenced.json"
LINEAGE_FILE = "lineage.json"
SWEEP_FILE = "sweep.json"
LOCK_FILE = "writer.lock"


class SegmentName(NamedTuple):
    """A segment's file name, ordered by base offset, then generation."""

    base_offset: int
    generation: int

    def __str__(self) -> str:
        return f"{self.base_offset:020d}-{self.generation}.log"

    @classmethod
    def parse(cls, name: str) -> SegmentName | None:
        """Return the parsed name, or None where `name` is no segment's."""
        match = _NAME.fullmatch(name)
        return cls(int(match[1]), int(match[2])) if match else None


@dataclass(frozen=True, slots=True)
class Listing:
    """One look at a partition's directory.

    Attributes
    ----------
    segments
        The highest generation of every base offset, in offset order; the last is the newest file.
    leftovers
        Lower generations, superseded.
    """

    segments: tuple[SegmentName, ...]
    leftovers: tuple[SegmentName, ...]


def list_segments(directory: Path) -> Listing:
    """List a partition's directory in one pass; an absent one is empty."""
    try:
        with NoRoom(directory):
            listed = os.listdir(directory)
        names = sorted(found for name in listed if (found := SegmentName.parse(name)))
    except FileNotFoundError:
        names = []
    current = {name.base_offset: name for name in names}
    leftovers = tuple(name for name in names if current[name.base_offset] != name)
    return Listing(tuple(current.values()), leftovers)


def remove_half_written(fs: FileSystem, directory: Path) -> None:
    """Remove what a killed tierer left half made; the writer's own files, generation 0, are left alone.

    The caller holds the tiering lock, under which alone these files are made.
    """
    documents = {f".{REQUEST_FILE}.tmp", f".{SWEEP_FILE}.tmp"}
    for name in os.listdir(directory):
        if (name.endswith(".log.tmp") and not name.endswith("-0.log.tmp")) or name in documents:
            fs.unlink(directory / name)


def read_start_offset(directory: Path) -> int:
    """Return the partition's durable start offset; 0 before it was ever moved.

    Raises
    ------
    CorruptionError, UnsupportedFormat
    """
    path = directory / START_FILE
    try:
        data = read_whole(path)
    except FileNotFoundError:
        return 0
    value = decode_document(data, where=str(path)).get("start_offset")
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise CorruptionError("no start offset", where=str(path))
    return value


def write_start_offset(fs: FileSystem, directory: Path, start_offset: int) -> None:
    """Store the start offset durably."""
    write_atomically(fs, directory / START_FILE, encode_document({"start_offset": start_offset}))


def read_lineage(directory: Path) -> int | None:
    """Return the epoch of the lineage that this partition belongs to in the bucket; None before the first claim."""
    path = directory / LINEAGE_FILE
    try:
        data = read_whole(path)
    except FileNotFoundError:
        return None
    value = decode_document(data, where=str(path)).get("epoch")
    if type(value) is not int or not 1 <= value < 1 << 63:
        raise CorruptionError("no lineage epoch", where=str(path))
    return value


def write_lineage(fs: FileSystem, directory: Path, epoch: int) -> None:
    """Remember the lineage durably, so that a restore elsewhere fences this disk even after a restart."""
    write_atomically(fs, directory / LINEAGE_FILE, encode_document({"epoch": epoch}))


def read_fence(directory: Path) -> str | None:
    """Return why this lineage was fenced, or None."""
    path = directory / FENCED_FILE
    try:
        data = read_whole(path)
    except FileNotFoundError:
        return None
    return str(decode_document(data, where=str(path)).get("reason", "a newer lineage exists"))


def write_fence(fs: FileSystem, directory: Path, reason: str) -> None:
    """Mark the partition as fenced, durably."""
    write_atomically(fs, directory / FENCED_FILE, encode_document({"reason": reason}))


def read_marks(directory: Path) -> dict[str, float]:
    """Return the orphans that the last sweep left, by key, with when at the latest they became one (Unix).

    Raises
    ------
    CorruptionError, UnsupportedFormat
    """
    path = directory / SWEEP_FILE
    try:
        data = read_whole(path)
    except FileNotFoundError:
        return {}
    marks = decode_document(data, where=str(path)).get("unnamed")
    if not isinstance(marks, dict) or not all(isinstance(item, (int, float)) for item in marks.values()):
        raise CorruptionError("no marks of a sweep", where=str(path))
    try:
        return {key: float(since) for key, since in marks.items()}
    except OverflowError:
        raise CorruptionError("no marks of a sweep", where=str(path)) from None


def write_marks(fs: FileSystem, directory: Path, marks: dict[str, float]) -> None:
    """Remember the orphans of a sweep, durably."""
    write_atomically(fs, directory / SWEEP_FILE, encode_document({"unnamed": marks}))
