"""The directory of a partition: its segment files and its small documents.

The files are the only list of segments, so no second list can disagree. A file's name is
``<base offset, 20 digits>-<generation>.log``. If a re-encoding leaves two generations of one base offset, the higher
one is the segment and the lower one a leftover.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from ..errors import CorruptionError
from .document_file import find_document, write_document
from .filesystem import FileSystem, ReadErrors
from .writer_requests import REQUEST_FILE

_NAME = re.compile(r"([0-9]{20})-([0-9]{1,9})\.log")
START_FILE = "start.json"
FENCED_FILE = "fenced.json"
LINEAGE_FILE = "lineage.json"
SWEEP_FILE = "sweep.json"
PARTITION_LOCK = "writer.lock"


class SegmentName(NamedTuple):
    """A segment's file name, ordered by base offset, then generation."""

    base_offset: int
    generation: int

    def __str__(self) -> str:
        return f"{self.base_offset:020d}-{self.generation}.log"

    @classmethod
    def parse(cls, name: str) -> SegmentName | None:
        """Return the parsed name; None if `name` is not the name of a segment."""
        match = _NAME.fullmatch(name)
        return cls(int(match[1]), int(match[2])) if match else None


@dataclass(frozen=True, slots=True)
class Listing:
    """The segment files of a partition's directory.

    Attributes
    ----------
    segments
        The highest generation of every base offset, in offset order; the last is the newest file.
    leftovers
        The lower generations, which a re-encoding replaced.
    """

    segments: tuple[SegmentName, ...]
    leftovers: tuple[SegmentName, ...]


def list_segments(directory: Path) -> Listing:
    """List the segments of a partition's directory; a missing directory is empty."""
    try:
        with ReadErrors(directory):
            listed = os.listdir(directory)
        names = sorted(found for name in listed if (found := SegmentName.parse(name)))
    except FileNotFoundError:
        names = []
    current = {name.base_offset: name for name in names}
    leftovers = tuple(name for name in names if current[name.base_offset] != name)
    return Listing(tuple(current.values()), leftovers)


def half_written(directory: Path) -> list[Path]:
    """Return the unfinished segment files of a tierer; those of the writer, which have generation 0, are not among them."""
    return sorted(path for path in directory.glob(".*.log.tmp") if not path.name.endswith("-0.log.tmp"))


def remove_half_written(fs: FileSystem, directory: Path) -> None:
    """Remove unfinished files of a killed tierer.

    The caller holds the tiering lock; these files are only written under it.
    """
    for path in (
        *half_written(directory),
        *(directory / f".{name}.tmp" for name in (REQUEST_FILE, SWEEP_FILE)),
    ):
        fs.unlink(path)


def read_start_offset(directory: Path) -> int:
    """Return the partition's durable start offset; 0 if it was never moved.

    Raises
    ------
    CorruptionError, UnsupportedFormat
    """
    path = f"{directory}/{START_FILE}"
    values = find_document(path)
    if values is None:
        return 0
    value = values.get("start_offset")
    if type(value) is not int or not 0 <= value < 1 << 63:
        raise CorruptionError("no start offset", where=path)
    return value


def write_start_offset(fs: FileSystem, directory: Path, start_offset: int) -> None:
    """Store the start offset durably."""
    write_document(fs, directory / START_FILE, {"start_offset": start_offset})


def read_lineage(directory: Path) -> int | None:
    """Return the epoch of the partition's lineage in the bucket; None before the first claim."""
    path = f"{directory}/{LINEAGE_FILE}"
    values = find_document(path)
    if values is None:
        return None
    value = values.get("epoch")
    if type(value) is not int or not 1 <= value < 1 << 63:
        raise CorruptionError("no lineage epoch", where=path)
    return value


def write_lineage(fs: FileSystem, directory: Path, epoch: int) -> None:
    """Store the lineage durably, so that a restore elsewhere fences this disk even after a restart."""
    write_document(fs, directory / LINEAGE_FILE, {"epoch": epoch})


def read_fence(directory: Path) -> str | None:
    """Return the reason why the partition is fenced; None if it is not."""
    values = find_document(f"{directory}/{FENCED_FILE}")
    return None if values is None else str(values.get("reason", "a newer lineage exists"))


def write_fence(fs: FileSystem, directory: Path, reason: str) -> None:
    """Mark the partition as fenced, durably."""
    write_document(fs, directory / FENCED_FILE, {"reason": reason})


def read_marks(directory: Path) -> dict[str, float]:
    """Return the orphans that the last sweep left: by key, a time since which no manifest names it.

    Raises
    ------
    CorruptionError, UnsupportedFormat
    """
    path = f"{directory}/{SWEEP_FILE}"
    values = find_document(path)
    if values is None:
        return {}
    marks = values.get("unnamed")
    if not isinstance(marks, dict) or not all(isinstance(item, (int, float)) for item in marks.values()):
        raise CorruptionError("no marks of a sweep", where=path)
    try:
        return {key: float(since) for key, since in marks.items()}
    except OverflowError:
        raise CorruptionError("no marks of a sweep", where=path) from None


def write_marks(fs: FileSystem, directory: Path, marks: dict[str, float]) -> None:
    """Store the orphans of a sweep durably."""
    write_document(fs, directory / SWEEP_FILE, {"unnamed": marks})
