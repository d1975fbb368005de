"""The progress of the scrub of a partition, and its damaged objects: a small file beside the segments.

Scrubs, other actions that read an object, and `tiered verify` record damaged objects. Local records of a damaged object
are not evicted. Without the file, a new round of the scrub begins.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ..errors import CorruptionError
from ..policies.facts import ScrubFact
from ..warm.document_file import find_document, write_document
from ..warm.file_lock import FileLock
from ..warm.filesystem import FileSystem

SCRUB_FILE = "scrub.json"
SCRUB_LOCK = "scrub.lock"
_TURN_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Damage:
    """The damage of an object; ``position`` is None if the object is missing."""

    name: str
    reason: str
    position: int | None
    base_offset: int
    end_offset: int
    found_us: int

    def __str__(self) -> str:
        position = "" if self.position is None else f" at byte {self.position}"
        return f"{self.name}{position}: {self.reason} (offsets {self.base_offset} to {self.end_offset})"


@dataclass(frozen=True, slots=True)
class ScrubState:
    """As `ScrubFact`, with the time at which the last round completed, and the damaged objects."""

    round: int = 0
    started_us: int = 0
    finished_us: int = 0
    next_offset: int = 0
    completed_us: int = 0
    damaged: tuple[Damage, ...] = ()

    @property
    def fact(self) -> ScrubFact | None:
        """The part that a plan needs; None before the first round."""
        if not self.round:
            return None
        return ScrubFact(self.round, self.started_us, self.finished_us, self.next_offset)

    def among(self, names: Collection[str]) -> ScrubState:
        """Return the state with only those damaged objects that are in `names`."""
        return replace(self, damaged=tuple(item for item in self.damaged if item.name in names))

    def with_damage(self, damage: Damage) -> ScrubState:
        """Return the state with one more damaged object; an earlier entry of the object is replaced."""
        return replace(self, damaged=(*(item for item in self.damaged if item.name != damage.name), damage))


def read_scrub_state(directory: Path) -> ScrubState:
    """Return the state of a partition; the initial state if the file is missing or fails its checksum."""
    try:
        values = find_document(f"{directory}/{SCRUB_FILE}")
        if values is None:
            return ScrubState()
        damaged = tuple(Damage(**item) for item in values.pop("damaged"))
        numbers = {name: int(values[name]) for name in ScrubState.__dataclass_fields__ if name != "damaged"}
        return ScrubState(**numbers, damaged=damaged)
    except (CorruptionError, KeyError, TypeError, ValueError):
        return ScrubState()


def change_scrub_state(
    fs: FileSystem, directory: Path, change: Callable[[ScrubState], ScrubState]
) -> ScrubState:
    """Replace the state durably by the result of `change`, and return it; a file lock excludes other callers.

    Raises
    ------
    DiskFull, ReadOnly, StoreLocked
    """
    what = f"the list of damaged objects in {directory}"
    lock = FileLock.acquire(directory / SCRUB_LOCK, what, wait_seconds=_TURN_SECONDS, nameless=True)
    try:
        state = change(read_scrub_state(directory))
        write_document(fs, directory / SCRUB_FILE, asdict(state))
        return state
    finally:
        lock.release()
