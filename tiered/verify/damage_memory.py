"""What a verification finds damaged in the bucket is remembered beside what scrubs find, so that none of it is evicted."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from ..cold.manifest.keys import parse_object_name
from ..errors import TieredError
from ..survey.scrub_state import Damage, ScrubState, change_scrub_state, read_scrub_state
from ..warm.filesystem import FileSystem, OsFileSystem
from .notes import Notes
from .report import Item

log = logging.getLogger("tiered.verify")


def wall_clock_us() -> int:
    """Return microseconds since the epoch, UTC."""
    return time.time_ns() // 1000


@dataclass(frozen=True, slots=True)
class Memory:
    """Where a verification leaves what it finds of objects; for stores that may be written."""

    fs: FileSystem = field(default_factory=OsFileSystem)
    clock: Callable[[], int] = wall_clock_us

    def note(self, directory: Path, data_url: str, notes: Notes) -> None:
        """Remember which objects of a partition are damaged, and forget those that were read whole and are sound.

        Parameters
        ----------
        data_url
            What the URLs of the partition's objects begin with.
        """
        found = {
            problem.where.removeprefix(data_url): problem
            for problem in reversed(notes.problems)
            if problem.item is Item.OBJECT and problem.where.startswith(data_url)
        } | {name: problem for name, problem in notes.looked.items() if problem is not None}
        now_us = self.clock()

        def change(state: ScrubState) -> ScrubState:
            sound = notes.looked.keys() - found.keys()
            known = {item.name for item in state.damaged}
            state = state.among(known - sound)
            for name, problem in found.items():
                parsed = parse_object_name(name)
                if name not in known and parsed is not None:
                    base, end = problem.offsets or (parsed.base_offset, parsed.base_offset + 1)
                    damage = Damage(name, problem.reason, problem.position, base, end, now_us)
                    state = state.with_damage(damage)
            return state

        try:
            state = read_scrub_state(directory)
            if change(state) != state:
                change_scrub_state(self.fs, directory, change)
        except (TieredError, OSError) as error:
            log.warning("which objects are damaged is not remembered: %s", error)
