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

from ..errors import CorruptionError
from ..format.document import decode_document, encode_document
from .filesystem import FileSystem, write_atomically

_NAME = re.compile(r"([0-9]{20})-([0-9]{1,9})\.log")
START_FILE = "start.json"
FENCED_FILE = "fenced.json"
LINEAGE_FILE = "lineage.json"
LOCK_FILE = "writer.lock"


@dataclass(frozen=True, slots=True, order=True)
class SegmentName:
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
        names = sorted(found for name in os.listdir(directory) if (found := SegmentName.parse(name)))
    except FileNotFoundError:
        names = []
    current = {name.base_offset: name for name in names}
    leftovers = tuple(name for name in names if current[name.base_offset] != name)
    return Listing(tuple(current.values()), leftovers)


def remove_half_written(fs: FileSystem, directory: Path) -> None:
    """Remove what a killed re-encoding left half made; the writer's own files, generation 0, are left alone."""
    for name in os.listdir(directory):
        if name.endswith(".log.tmp") and not name.endswith("-0.log.tmp"):
            fs.unlink(directory / name)


def read_start_offset(directory: Path) -> int:
    """Return the partition's durable start offset; 0 before it was ever moved.

    Raises
    ------
    CorruptionError, UnsupportedFormat
    """
    path = directory / START_FILE
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return 0
    value = decode_document(data, where=str(path)).get("start_offset")
    if not isinstance(value, int) or value < 0:
        raise CorruptionError("no start offset", where=str(path))
    return value


def write_start_offset(fs: FileSystem, directory: Path, start_offset: int) -> None:
    """Store the start offset durably."""
    write_atomically(fs, directory / START_FILE, encode_document({"start_offset": start_offset}))


def read_lineage(directory: Path) -> int | None:
    """Return the epoch of the lineage that this partition belongs to in the bucket; None before the first claim."""
    path = directory / LINEAGE_FILE
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    value = decode_document(data, where=str(path)).get("epoch")
    if not isinstance(value, int) or value < 1:
        raise CorruptionError("no lineage epoch", where=str(path))
    return value


def write_lineage(fs: FileSystem, directory: Path, epoch: int) -> None:
    """Remember the lineage durably, so that a restore elsewhere fences this disk even after a restart."""
    write_atomically(fs, directory / LINEAGE_FILE, encode_document({"epoch": epoch}))


def read_fence(directory: Path) -> str | None:
    """Return why this lineage was fenced, or None."""
    path = directory / FENCED_FILE
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    return str(decode_document(data, where=str(path)).get("reason", "a newer lineage exists"))


def write_fence(fs: FileSystem, directory: Path, reason: str) -> None:
    """Mark the partition as fenced, durably."""
    write_atomically(fs, directory / FENCED_FILE, encode_document({"reason": reason}))
