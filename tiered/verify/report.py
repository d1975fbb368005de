"""The report of a verification: problems, parts that cannot be checked, and repairs."""

from __future__ import annotations

import enum
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any


class Item(enum.StrEnum):
    """The kind of thing that has a problem."""

    DOCUMENT = "document"
    SEGMENT = "segment"
    HEAD = "head"
    PAGE = "page"
    OBJECT = "object"
    LOG = "log"
    TABLE = "table"


ADVICE = {
    Item.DOCUMENT: "keep the file and run tiered verify --repair, or put a copy back",
    Item.SEGMENT: "keep the file and run tiered verify --repair; records in the bucket are fetched again",
    Item.HEAD: "run tiered verify --repair: the manifest can be rebuilt from the objects",
    Item.PAGE: "run tiered verify --repair: the page can be rebuilt from its objects",
    Item.OBJECT: "run tiered verify --repair while the local segment is there: it is uploaded again",
    Item.TABLE: "once the log is sound, tiered table TOPIC --take makes the table anew from it",
    Item.LOG: "keep every file, stop the passes, and find a copy of the missing records",
}


@dataclass(frozen=True, slots=True)
class Problem:
    """One problem of a file, an object or a log.

    Attributes
    ----------
    item
        ``document``, ``segment``, ``head``, ``page``, ``object`` or ``table``; ``log`` for a contradiction between them.
    where
        Path of the file, or URL of the object.
    reason
        The problem in one line.
    position
        Byte position in the file or object, if known.
    offsets
        Offsets at risk, ``(start, end)``, end exclusive; None if they are unknown.
    advice
        What to do; empty for the usual advice for this item.
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
        byte = f" at byte {self.position}" if self.position is not None else ""
        risk = f" (offsets {self.offsets[0]} to {self.offsets[1]})" if self.offsets is not None else ""
        return f"{self.where}{byte}: {self.reason}{risk}; {self.advice or ADVICE[self.item]}"

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**asdict(self), "item": str(self.item), "advice": self.advice or ADVICE[self.item]}


@dataclass(frozen=True, slots=True)
class Unknown:
    """A part that cannot be checked, with the reason. It may be sound or damaged."""

    where: str
    reason: str

    def __str__(self) -> str:
        return f"{self.where}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Repair:
    """One repair: done, refused, proposed or failed, with the reason.

    Attributes
    ----------
    result
        ``done``, ``refused``, ``proposed`` (a further option must allow it) or ``failed``.
    kept
        The present path or URL of the damaged original, if it was moved or copied.
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
    """The result of a verification.

    Attributes
    ----------
    url
        Path or URL of the store.
    deep
        Whether every byte was read.
    problems
        The problems; empty if everything that could be checked is sound.
    unknown
        The parts that could not be checked, such as a bucket that does not answer.
    segments, blocks, objects, bytes
        The numbers of checked segment files, blocks and objects, and the bytes read of them.
    repairs
        The repairs that ``tiered verify --repair`` made before this verification.
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
        """Whether there is no problem; unknown parts are no problem."""
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
