"""What a verification found: problems, what could not be looked at, and what a repair did."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any


class Item(enum.StrEnum):
    """What a problem is about."""

    DOCUMENT = "document"
    SEGMENT = "segment"
    HEAD = "head"
    PAGE = "page"
    OBJECT = "object"
    LOG = "log"


ADVICE = {
    Item.DOCUMENT: "keep the file and run tiered verify --repair, or put a copy back",
    Item.SEGMENT: "keep the file and run tiered verify --repair; what the bucket has is fetched again",
    Item.HEAD: "run tiered verify --repair: the manifest can be rebuilt from the objects",
    Item.PAGE: "run tiered verify --repair: the page can be rebuilt from its objects",
    Item.OBJECT: "run tiered verify --repair while the local segment is there: it is uploaded again",
    Item.LOG: "keep every file, stop the passes, and look for a copy of what is missing",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is not as it should be.

    Attributes
    ----------
    item
        ``document``, ``segment``, ``head``, ``page``, ``object``, or ``log`` for what holds between them.
    where
        Path of the file, or URL of the object.
    reason
        What is wrong, in one line.
    position
        Byte position in it, where there is one.
    offsets
        Offsets at risk, ``(start, end)``, end exclusive; None where they are not known.
    advice
        What to do.
    """

    item: Item
    where: str
    reason: str
    topic: str = ""
    partition: int | None = None
    position: int | None = None
    offsets: tuple[int, int] | None = None
    advice: str = ""

    def __str__(self) -> str:
        place = f" at byte {self.position}" if self.position is not None else ""
        risk = f" (offsets {self.offsets[0]} to {self.offsets[1]})" if self.offsets is not None else ""
        return f"{self.where}{place}: {self.reason}{risk}; {self.advice or ADVICE[self.item]}"

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**asdict(self), "item": str(self.item), "advice": self.advice or ADVICE[self.item]}


@dataclass(frozen=True, slots=True)
class Unknown:
    """Something that could not be looked at, and why: neither well nor damaged."""

    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Repair:
    """One thing that a repair did, or refused or only proposes to do, and why.

    Attributes
    ----------
    result
        ``done``, ``refused``, ``proposed`` (it needs to be asked for by name) or ``failed``.
    kept
        Where the damaged original lies now, where it was moved or copied.
    """

    where: str
    action: str
    result: str
    why: str = ""
    kept: str = ""

    def __str__(self) -> str:
        kept = f"; the original is kept as {self.kept}" if self.kept else ""
        return f"{self.where}: {self.action}: {self.result}{f' ({self.why})' if self.why else ''}{kept}"


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What a verification looked at and found.

    Attributes
    ----------
    url
        Path or URL of the store.
    deep
        Whether every byte was read.
    problems
        What is not as it should be; empty where all that could be looked at is well.
    unknown
        What could not be looked at, such as a bucket that does not answer.
    segments, blocks, objects, bytes
        How many segment files, blocks and objects were looked at, and the bytes that were read of them.
    repairs
        What ``tiered verify --repair`` did before this look.
    """

    url: str
    deep: bool
    problems: tuple[Problem, ...] = ()
    unknown: tuple[Unknown, ...] = ()
    segments: int = 0
    blocks: int = 0
    objects: int = 0
    bytes: int = 0
    repairs: tuple[Repair, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether no problem was found; what is unknown is no problem."""
        return not self.problems

    def __iter__(self) -> Iterator[Problem]:
        return iter(self.problems)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            **{
                name: getattr(self, name)
                for name in ("url", "deep", "segments", "blocks", "objects", "bytes")
            },
            "ok": self.ok,
            "problems": [item.to_json() for item in self.problems],
            "unknown": [asdict(item) for item in self.unknown],
            "repairs": [asdict(item) for item in self.repairs],
        }
