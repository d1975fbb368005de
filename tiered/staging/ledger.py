"""What is written down of the commits of one query: the one under way, and the last one done."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from uuid import UUID

from ..errors import CorruptionError
from ..format.document import decode_document, encode_document
from ..warm.filesystem import FileSystem, read_whole, write_atomically
from ..warm.open_commits import DECISION_FILE, STAGE_DIRECTORY
from .stage_file import Staged

ONCE = "job:"
"""How the name of a query begins that has one batch, and that nobody will use again."""
_DONE = "done.json"
_ROWS = ".rows"


@dataclass(frozen=True, slots=True)
class Commit:
    """A batch of a query that is to be in the log: decided, for good, once this is written.

    Attributes
    ----------
    batch
        Its number; those of a query rise.
    partitions
        Of the topic when the commit was decided: where each row goes follows from it, now and at every repetition.
    staged
        The attempts that count, in the order of their rows.
    """

    topic: str
    topic_id: UUID
    query: str
    batch: int
    partitions: int
    staged: tuple[Staged, ...]

    @property
    def once(self) -> bool:
        """Whether no other batch of the query follows; see `ONCE`."""
        return self.query.startswith(ONCE)

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "topic": self.topic,
            "topic_id": str(self.topic_id),
            "query": self.query,
            "batch": self.batch,
            "partitions": self.partitions,
            "staged": [item.to_json() for item in self.staged],
        }

    @classmethod
    def from_json(cls, values: dict[str, Any], *, where: str) -> Self:
        """Invert `to_json`; raise `CorruptionError` for what is none."""
        try:
            staged = tuple(
                Staged(str(item["attempt"]), int(item["rows"]), int(item["bytes"]))
                for item in values["staged"]
            )
            return cls(
                str(values["topic"]),
                UUID(values["topic_id"]),
                str(values["query"]),
                int(values["batch"]),
                int(values["partitions"]),
                staged,
            )
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise CorruptionError(f"commit does not decode ({error!r})", where=where) from None


class Ledger:
    """The directory of one query on one topic: its documents, and the rows that are staged for it."""

    def __init__(self, fs: FileSystem, directory: Path) -> None:
        self._fs = fs
        self.directory = directory

    @classmethod
    def of(cls, fs: FileSystem, root: Path, topic_id: UUID, query: str) -> Self:
        """Return the one of a query, which may have any name."""
        name = hashlib.sha256(topic_id.bytes + query.encode()).hexdigest()[:32]
        return cls(fs, root / STAGE_DIRECTORY / name)

    def rows_path(self, attempt: str) -> Path:
        """Return where the rows of an attempt are."""
        return self.directory / f"{attempt}{_ROWS}"

    def make(self) -> None:
        """Make the directory, durably."""
        self._fs.make_directory(self.directory)

    def under_way(self) -> Commit | None:
        """Return the commit that was decided and not finished."""
        values = self._read(DECISION_FILE)
        return None if values is None else Commit.from_json(values, where=str(self.directory / DECISION_FILE))

    def decide(self, commit: Commit) -> None:
        """Write down what will be in the log: from here on it is only ever completed."""
        write_atomically(self._fs, self.directory / DECISION_FILE, encode_document(commit.to_json()))

    def done(self) -> int:
        """Return the number of the last batch that is in the log; -1 where there is none."""
        values = self._read(_DONE)
        return -1 if values is None else int(values["batch"])

    def finish(self, commit: Commit) -> None:
        """Write down that a batch is in the log, then forget how it came there."""
        if commit.batch > self.done():
            values = {key: value for key, value in commit.to_json().items() if key != "staged"}
            write_atomically(self._fs, self.directory / _DONE, encode_document(values))
        self.forget()

    def forget(self) -> None:
        """Let the commit under way go, and with it everything that is staged."""
        self._fs.unlink(self.directory / DECISION_FILE)
        # The rows go after the decision that names them: one without the other could never be completed.
        self._fs.sync_directory(self.directory)
        self.discard(None)

    def discard(self, attempts: list[str] | None) -> None:
        """Remove the rows of attempts; None: of all of them."""
        paths = self.rows() if attempts is None else [self.rows_path(attempt) for attempt in attempts]
        for path in paths:
            self._fs.unlink(path)

    def rows(self) -> list[Path]:
        """Return the files of rows that are there, also those being written."""
        return sorted(self.directory.glob(f"*{_ROWS}")) if self.directory.is_dir() else []

    def sweep(self, rows_before: float, done_before: float) -> None:
        """Remove rows that nobody came back for, and in the end what is known of a query that is no more.

        Parameters
        ----------
        rows_before, done_before
            Seconds since the epoch: what was last written before then goes. What is known of a query that has one
            batch goes as its rows do.
        """
        if (self.directory / DECISION_FILE).exists():
            return
        for path in self.rows():
            if _written_at(path) < rows_before:
                self._fs.unlink(path)
        if self.rows():
            return
        written = _written_at(self.directory / _DONE, self.directory)
        if written < done_before or (written < rows_before and self._has_ended()):
            self._fs.unlink(self.directory / _DONE)
            self._fs.unlink(self.directory / f".{_DONE}.tmp")
            self._fs.unlink(self.directory / f".{DECISION_FILE}.tmp")
            self._fs.remove_directory(self.directory)

    def _has_ended(self) -> bool:
        """Whether no batch that is known of can come again."""
        values = self._read(_DONE)
        return values is None or str(values.get("query")).startswith(ONCE)

    def _read(self, name: str) -> dict[str, Any] | None:
        path = self.directory / name
        try:
            return decode_document(read_whole(path), where=str(path))
        except FileNotFoundError:
            return None


def _written_at(*paths: Path) -> float:
    """Return when the first of the files that is there was written; in future where none is."""
    for path in paths:
        try:
            return path.stat().st_mtime
        except FileNotFoundError:
            continue
    return float("inf")
