"""Where the checks write what they find, and the net that keeps any damage from ending a verification."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ..errors import CorruptionError, ObjectNotFound, TieredError, UnsupportedFormat
from .report import Item, Problem, Unknown

Progress = Callable[[str, int], None]
"""Told what is looked at, and how many bytes of it were read since the last call."""


class Gone(Exception):
    """What was to be looked at is not there any more: it moved or was replaced meanwhile."""


@dataclass(slots=True)
class Notes:
    """Problems, unknowns and counts of one verification, and of which topic they are.

    Attributes
    ----------
    looked
        Objects of which every byte was read, by name, each with the first problem that was found.
    """

    progress: Progress | None = None
    problems: list[Problem] = field(default_factory=list)
    unknown: list[Unknown] = field(default_factory=list)
    topic: str = ""
    partition: int | None = None
    segments: int = 0
    blocks: int = 0
    objects: int = 0
    bytes: int = 0
    looked: dict[str, Problem | None] = field(default_factory=dict)

    def inner(self) -> Notes:
        """Return empty notes of the same topic and partition, to be added or thrown away."""
        return Notes(self.progress, topic=self.topic, partition=self.partition)

    def add(self, other: Notes) -> None:
        """Take over what `other` found."""
        for problem in other.problems:
            self.problem(problem)
        for item in other.unknown:
            self.not_known(item.where, item.reason)
        self.segments += other.segments
        self.blocks += other.blocks
        self.objects += other.objects
        self.bytes += other.bytes
        self.looked |= other.looked

    def problem(self, problem: Problem) -> None:
        """Write down a problem, once."""
        if problem.topic == "" and problem.partition is None:
            problem = replace(problem, topic=self.topic, partition=self.partition)
        if problem not in self.problems:
            self.problems.append(problem)

    def not_known(self, where: str, reason: str) -> None:
        """Write down what could not be looked at, once."""
        item = Unknown(where, reason)
        if item not in self.unknown:
            self.unknown.append(item)

    def read(self, where: str, count: int) -> None:
        """Count bytes that were read."""
        self.bytes += count
        if self.progress is not None:
            self.progress(where, count)

    def guard(
        self, item: Item, where: str, *, position: int | None = None, offsets: tuple[int, int] | None = None
    ) -> Guard:
        """Turn whatever is raised within into a problem or an unknown, and go on after it."""
        return Guard(self, Problem(item, where, "", position=position, offsets=offsets))


class Guard:
    """What `Notes.guard` returns.

    Unreadable is not absent and unknown is not failed (promise P10): only bytes that were read and are wrong,
    or what the disk or the bucket says with authority, is a problem.
    """

    __slots__ = ("_blank", "_notes")

    def __init__(self, notes: Notes, blank: Problem) -> None:
        self._notes = notes
        self._blank = blank

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if error is None or isinstance(error, Gone) or not isinstance(error, Exception):
            return False
        blank = self._blank
        if isinstance(error, CorruptionError):
            self._problem(
                error.reason,
                error.where or blank.where,
                blank.position if error.position is None else error.position,
                error.offsets
                if error.offsets is not None and error.offsets[0] < error.offsets[1]
                else blank.offsets,
            )
        elif isinstance(error, ObjectNotFound):
            self._problem("is missing", blank.where, None, blank.offsets)
        elif isinstance(error, UnsupportedFormat):
            self._notes.not_known(blank.where, f"{error}: upgrade to look at it")
        elif isinstance(error, TieredError):
            self._notes.not_known(blank.where, str(error))
        elif isinstance(error, OSError) and error.errno == errno.EIO:
            self._problem(f"the device cannot read it ({error})", blank.where, blank.position, blank.offsets)
        elif isinstance(error, OSError) and error.errno is not None:
            self._notes.not_known(blank.where, f"cannot be read ({error})")
        else:
            # Damaged bytes reach libraries that promise no classes of errors; a verification outlives them all.
            reason = f"cannot be decoded ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
            self._problem(reason, blank.where, blank.position, blank.offsets)
        return True

    def _problem(
        self, reason: str, where: str, position: int | None, offsets: tuple[int, int] | None
    ) -> None:
        self._notes.problem(
            replace(self._blank, reason=reason, where=where, position=position, offsets=offsets)
        )
