"""`DamageMemory`: stores the damaged objects of a verification with those of scrubs, so that passes keep their local records."""

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
from .findings import Findings
from .report import Item

log = logging.getLogger("tiered.verify")


def wall_clock_us() -> int:
    """Return microseconds since the epoch, UTC."""
    return time.time_ns() // 1000


@dataclass(frozen=True, slots=True)
class DamageMemory:
    """Stores the damaged objects that a verification finds; only for stores that may be changed."""

    fs: FileSystem = field(default_factory=OsFileSystem)
    clock: Callable[[], int] = wall_clock_us

    def record(self, directory: Path, data_url: str, findings: Findings) -> None:
        """Add the damaged objects of a partition to its scrub state; remove objects that were read whole and are sound.

        Parameters
        ----------
        data_url
            The prefix of the URLs of the partition's objects.
        """
        damaged = {
            problem.where.removeprefix(data_url): problem
            for problem in reversed(findings.problems)
            if problem.item is Item.OBJECT and problem.where.startswith(data_url)
        } | {name: problem for name, problem in findings.objects_read.items() if problem is not None}
        now_us = self.clock()

        def change(state: ScrubState) -> ScrubState:
            sound = findings.objects_read.keys() - damaged.keys()
            known = {item.name for item in state.damaged}
            state = state.among(known - sound)
            for name, problem in damaged.items():
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
            log.warning("the list of damaged objects cannot be stored: %s", error)
