"""`Findings`: the problems and unknowns of a verification, and the guard that turns any error into one of them."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from ..errors import CorruptionError, FileUnreadable, ObjectNotFound, TieredError, UnsupportedFormat
from .report import Item, Problem, Unknown

Progress = Callable[[str, int], None]
"""Takes the path or URL that is being read, and the number of bytes read since the last call."""


class FileVanished(Exception):
    """A file was moved or replaced before it could be checked."""


@dataclass(slots=True)
class Findings:
    """The problems, unknowns and counts of one verification, with the topic and partition being checked.

    Attributes
    ----------
    objects_read
        The objects of which every byte was read, by name, each with its first problem or None.
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
    objects_read: dict[str, Problem | None] = field(default_factory=dict)

    def empty_copy(self) -> Findings:
        """Return empty findings for the same topic and partition, to add or to discard later."""
        return Findings(self.progress, topic=self.topic, partition=self.partition)

    def add(self, other: Findings) -> None:
        """Add the findings in `other`."""
        for problem in other.problems:
            self.add_problem(problem)
        for item in other.unknown:
            self.add_unknown(item.where, item.reason)
        self.segments += other.segments
        self.blocks += other.blocks
        self.objects += other.objects
        self.bytes += other.bytes
        self.objects_read |= other.objects_read

    def add_problem(self, problem: Problem) -> None:
        """Add a problem, unless it is there already."""
        if problem.topic == "" and problem.partition is None:
            problem = replace(problem, topic=self.topic, partition=self.partition)
        if problem not in self.problems:
            self.problems.append(problem)

    def add_unknown(self, where: str, reason: str) -> None:
        """Add a part that cannot be checked, unless it is there already."""
        item = Unknown(where, reason)
        if item not in self.unknown:
            self.unknown.append(item)

    def count_read(self, where: str, count: int) -> None:
        """Count bytes read from a file or object."""
        self.bytes += count
        if self.progress is not None:
            self.progress(where, count)

    def guard(
        self, item: Item, where: str, *, position: int | None = None, offsets: tuple[int, int] | None = None
    ) -> Guard:
        """Return a context that turns every error of its body into a problem or an unknown."""
        return Guard(self, Problem(item, where, "", position=position, offsets=offsets))


class Guard:
    """The context of `Findings.guard`.

    Unreadable is not absent, and unknown is not failed (promise P10). A problem is only what is certain: bytes that were
    read and are wrong, a missing object, a device error. All other errors are unknowns.
    """

    __slots__ = ("_blank", "_findings")

    def __init__(self, findings: Findings, blank: Problem) -> None:
        self._findings = findings
        self._blank = blank

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if error is None or isinstance(error, FileVanished) or not isinstance(error, Exception):
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
            self._findings.add_unknown(blank.where, f"{error}: upgrade to check it")
        elif isinstance(error, FileUnreadable | OSError) and error.errno == errno.EIO:
            self._problem(f"the device cannot read it ({error})", blank.where, blank.position, blank.offsets)
        elif isinstance(error, TieredError):
            self._findings.add_unknown(blank.where, str(error))
        elif isinstance(error, OSError) and error.errno is not None:
            self._findings.add_unknown(blank.where, f"cannot be read ({error})")
        else:
            # Damaged bytes can raise any error in a library, and no error may end a verification.
            reason = f"cannot be decoded ({type(error).__name__}: {' '.join(str(error).split())[:200]})"
            self._problem(reason, blank.where, blank.position, blank.offsets)
        return True

    def _problem(
        self, reason: str, where: str, position: int | None, offsets: tuple[int, int] | None
    ) -> None:
        self._findings.add_problem(
            replace(self._blank, reason=reason, where=where, position=position, offsets=offsets)
        )
