"""Scrub: look at a range of a partition's objects again, and remember what is damaged. Nothing is ever deleted."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path

from ..cold.manifest.partition_manifest import PartitionManifest
from ..cold.upkeep.check import scrub_object
from ..errors import CorruptionError, ObjectNotFound, TieredError
from ..format.manifest import ObjectEntry
from ..policies.actions import Scrub
from ..survey.scrub_state import Damage, ScrubState, change_scrub_state, read_scrub_state
from ..warm.filesystem import FileSystem

log = logging.getLogger("tiered.scrub")


class PartitionScrub:
    """Scrubs of one partition.

    Parameters
    ----------
    cold
        With no page in memory that the bucket may have lost since.
    clock
        Returns microseconds since the epoch, UTC.
    kept
        Keeps the topic from being deleted while something is written into `directory`.
    """

    def __init__(
        self,
        cold: PartitionManifest,
        directory: Path,
        fs: FileSystem,
        clock: Callable[[], int],
        kept: Callable[[], AbstractContextManager[object]],
    ) -> None:
        self._cold = cold
        self._directory = directory
        self._fs = fs
        self._clock = clock
        self._kept = kept

    def run(self, action: Scrub) -> int:
        """Look at the objects of the action's range; return the bytes that were read.

        Raises
        ------
        CorruptionError
            Something is damaged or missing; the other objects were looked at all the same.
        ColdStorageError, UnsupportedFormat
            The bucket does not say; the next pass goes on with the object that could not be looked at.
        """
        known = read_scrub_state(self._directory)
        loaded = self._cold.load()
        entries = (
            self._cold.entries(loaded.head, action.base_offset, action.end_offset)
            if loaded is not None
            else []
        )
        found: list[Damage] = []
        count = 0

        def read(size: int) -> None:
            nonlocal count
            count += size

        reached, problem = action.base_offset, None
        for entry in entries:
            if entry.sealed:
                try:
                    found += self._look(entry, deep=action.deep, read=read)
                except TieredError as error:
                    problem = error
                    break
            reached = entry.end_offset
        gone = self._gone(known.damaged)

        def change(state: ScrubState) -> ScrubState:
            state = replace(self._begun(state, action), next_offset=reached)
            state = replace(state, damaged=tuple(item for item in state.damaged if item.name not in gone))
            for damage in found:
                state = state.with_damage(damage)
            return state if problem is not None else self._ended(state, action)

        self._remember(change)
        if problem is not None:
            raise problem
        if found:
            raise _corruption(self._cold, found)
        return count

    def note(self, entry: ObjectEntry, error: CorruptionError | ObjectNotFound) -> None:
        """Remember an object that was found damaged by another action, so that no merge tries it again."""
        damage = self._damage(entry, error)
        self._remember(lambda state: state.with_damage(damage))

    def _remember(self, change: Callable[[ScrubState], ScrubState]) -> None:
        with self._kept():
            change_scrub_state(self._fs, self._directory, change)

    def _begun(self, state: ScrubState, action: Scrub) -> ScrubState:
        if state.round == action.round and not state.finished_us:
            return state
        return replace(state, round=action.round, started_us=action.planned_us, finished_us=0)

    def _ended(self, state: ScrubState, action: Scrub) -> ScrubState:
        if not action.completes:
            return replace(state, next_offset=max(state.next_offset, action.end_offset))
        return replace(state, next_offset=0, finished_us=action.planned_us, completed_us=action.planned_us)

    def _look(self, entry: ObjectEntry, *, deep: bool, read: Callable[[int], object]) -> Iterator[Damage]:
        """Yield the damage of an object, unless the manifest does not name it any more."""
        key = self._cold.keys.data(entry.name)
        error: CorruptionError | ObjectNotFound | None = None
        try:
            error = next(scrub_object(self._cold.store, key, entry, deep=deep, read=read), None)
        except ObjectNotFound as missing:
            error = missing
        if error is not None and self._is_named(entry):
            log.error("%s: %s", self._cold.where(key), error)
            yield self._damage(entry, error)

    def _is_named(self, entry: ObjectEntry) -> bool:
        """Whether the manifest names an entry, as far as it can be read: it did just now."""
        try:
            loaded = self._cold.load()
            return loaded is not None and entry in self._cold.entries(
                loaded.head, entry.base_offset, entry.end_offset
            )
        except TieredError:
            return True

    def _gone(self, damaged: Sequence[Damage]) -> set[str]:
        """Return which damaged objects the manifest does not name any more; that one is sound is for a verification to say.

        The word of the server is no proof that what was read is sound, nor are checksums of what else is in it. Where the
        manifest cannot be read now, a later scrub looks again.
        """
        try:
            loaded = self._cold.load() if damaged else None
            if loaded is None:
                return set()
            entries = self._cold.entries
            return {
                item.name
                for item in damaged
                if all(
                    entry.name != item.name
                    for entry in entries(loaded.head, item.base_offset, item.end_offset)
                )
            }
        except TieredError:
            return set()

    def _damage(self, entry: ObjectEntry, error: CorruptionError | ObjectNotFound) -> Damage:
        reason, position = "is missing", None
        if isinstance(error, CorruptionError):
            reason, position = error.reason, error.position
        return Damage(
            entry.name,
            reason,
            position,
            entry.base_offset,
            entry.end_offset,
            self._clock(),
        )


def _corruption(cold: PartitionManifest, found: list[Damage]) -> CorruptionError:
    first = found[0]
    more = f" (one of {len(found)} damaged objects)" if len(found) > 1 else ""
    return CorruptionError(
        f"{first.reason}{more}",
        where=cold.where(cold.keys.data(first.name)),
        position=first.position,
        offsets=(first.base_offset, first.end_offset),
    )
