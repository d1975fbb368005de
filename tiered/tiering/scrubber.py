"""Scrub: verifies a range of a partition's objects and records the damaged ones. It deletes nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from ..cold.manifest.partition_manifest import PartitionManifest
from ..cold.upkeep.check import scrub_object
from ..errors import CorruptionError, ObjectNotFound, TieredError
from ..format.manifest import ObjectEntry
from ..policies.actions import Scrub
from ..survey.scrub_state import Damage, ScrubState, change_scrub_state, read_scrub_state
from ..warm.filesystem import FileSystem
from .partition_handle import PartitionHandle

log = logging.getLogger("tiered.scrub")


class PartitionScrub:
    """Scrubs of one partition.

    Parameters
    ----------
    manifest
        One that no other code uses: a page in the memory of a shared manifest could be lost in the bucket.
    clock
        Returns microseconds since the epoch, UTC.
    """

    def __init__(
        self,
        manifest: PartitionManifest,
        handle: PartitionHandle,
        fs: FileSystem,
        clock: Callable[[], int],
    ) -> None:
        self._manifest = manifest
        self._handle = handle
        self._fs = fs
        self._clock = clock

    def run(self, action: Scrub) -> int:
        """Verify the objects of the action's range; return the number of bytes read.

        Raises
        ------
        CorruptionError
            An object is damaged or missing. The other objects of the range were verified too.
        ColdStorageError, UnsupportedFormat
            An object could not be verified. The next pass continues with it.
        """
        damaged_before = read_scrub_state(self._handle.directory).damaged
        loaded = self._manifest.load()
        entries = (
            self._manifest.entries(loaded.head, action.base_offset, action.end_offset)
            if loaded is not None
            else []
        )
        damages: list[Damage] = []
        count = 0

        def count_read(size: int) -> None:
            nonlocal count
            count += size

        reached, problem = action.base_offset, None
        for entry in entries:
            if entry.sealed:
                try:
                    damages += self._verify(entry, deep=action.deep, count_read=count_read)
                except TieredError as error:
                    problem = error
                    break
            reached = entry.end_offset
        replaced = self._replaced(damaged_before)

        def change(state: ScrubState) -> ScrubState:
            state = replace(self._begin(state, action), next_offset=reached)
            state = replace(state, damaged=tuple(d for d in state.damaged if d.name not in replaced))
            for damage in damages:
                state = state.with_damage(damage)
            return state if problem is not None else self._end(state, action)

        self._record(change)
        if problem is not None:
            raise problem
        if damages:
            raise _corruption(self._manifest, damages)
        return count

    def record_damage(self, entry: ObjectEntry, error: CorruptionError | ObjectNotFound) -> None:
        """Record an object that another action found damaged, so that no merge uses it again."""
        damage = self._damage(entry, error)
        self._record(lambda state: state.with_damage(damage))

    def _record(self, change: Callable[[ScrubState], ScrubState]) -> None:
        with self._handle.hold_topic():
            change_scrub_state(self._fs, self._handle.directory, change)

    def _begin(self, state: ScrubState, action: Scrub) -> ScrubState:
        if state.round == action.round and not state.finished_us:
            return state
        return replace(state, round=action.round, started_us=action.planned_us, finished_us=0)

    def _end(self, state: ScrubState, action: Scrub) -> ScrubState:
        if not action.completes:
            return replace(state, next_offset=max(state.next_offset, action.end_offset))
        return replace(state, next_offset=0, finished_us=action.planned_us, completed_us=action.planned_us)

    def _verify(
        self, entry: ObjectEntry, *, deep: bool, count_read: Callable[[int], object]
    ) -> Iterator[Damage]:
        """Yield the damage of an object, if the manifest still names it."""
        key = self._manifest.keys.data(entry.name)
        error: CorruptionError | ObjectNotFound | None = None
        try:
            errors = scrub_object(self._manifest.store, key, entry, deep=deep, count_read=count_read)
            error = next(errors, None)
        except ObjectNotFound as missing:
            error = missing
        if error is not None and self._is_named(entry):
            log.error("%s: %s", self._manifest.where(key), error)
            yield self._damage(entry, error)

    def _is_named(self, entry: ObjectEntry) -> bool:
        """Whether the manifest still names an entry; true too if the manifest cannot be read now."""
        try:
            loaded = self._manifest.load()
            return loaded is not None and entry in self._manifest.entries(
                loaded.head, entry.base_offset, entry.end_offset
            )
        except TieredError:
            return True

    def _replaced(self, damaged: Sequence[Damage]) -> set[str]:
        """Return the names of the damaged objects that the manifest does not name any more; empty if it cannot be read.

        An object that it still names stays in the list, even if this scrub finds no damage: only a verification may
        call it sound. A checksum from the server, or of other parts of the object, does not prove that the damaged bytes
        are sound.
        """
        try:
            loaded = self._manifest.load() if damaged else None
            if loaded is None:
                return set()
            head, entries = loaded.head, self._manifest.entries
            return {
                damage.name
                for damage in damaged
                if damage.name not in {e.name for e in entries(head, damage.base_offset, damage.end_offset)}
            }
        except TieredError:
            return set()

    def _damage(self, entry: ObjectEntry, error: CorruptionError | ObjectNotFound) -> Damage:
        reason, position = "is missing", None
        if isinstance(error, CorruptionError):
            reason, position = error.reason, error.position
        return Damage(entry.name, reason, position, entry.base_offset, entry.end_offset, self._clock())


def _corruption(manifest: PartitionManifest, damages: list[Damage]) -> CorruptionError:
    first = damages[0]
    more = f" (one of {len(damages)} damaged objects)" if len(damages) > 1 else ""
    return CorruptionError(
        f"{first.reason}{more}",
        where=manifest.where(manifest.keys.data(first.name)),
        position=first.position,
        offsets=(first.base_offset, first.end_offset),
    )
