"""The ledger of one query: its decided commit, its last complete batch, and its staged rows."""

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

JOB_PREFIX = "job:"
"""The prefix of the name of a query that has one batch and never another."""
_DONE = "done.json"
_ROWS = ".rows"


@dataclass(frozen=True, slots=True)
class Commit:
    """The commit of a batch of a query. It is decided for good when it is written.

    Attributes
    ----------
    batch
        The number of the batch; the numbers of a query rise.
    partitions
        The topic's number of partitions when the commit was decided. Every repetition places each row by it.
    staged
        The attempts of the batch, in the order of their rows.
    """

    topic: str
    topic_id: UUID
    query: str
    batch: int
    partitions: int
    staged: tuple[Staged, ...]

    @property
    def is_job(self) -> bool:
        """Whether the query has only this batch; see `JOB_PREFIX`."""
        return self.query.startswith(JOB_PREFIX)

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
        """Invert `to_json`; raise `CorruptionError` if `values` are no commit."""
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
    """The directory of one query on one topic: its documents and its staged rows."""

    def __init__(self, fs: FileSystem, directory: Path) -> None:
        self._fs = fs
        self.directory = directory

    @classmethod
    def of(cls, fs: FileSystem, root: Path, topic_id: UUID, query: str) -> Self:
        """Return the ledger of a query, which may have any name."""
        name = hashlib.sha256(topic_id.bytes + query.encode()).hexdigest()[:32]
        return cls(fs, root / STAGE_DIRECTORY / name)

    def rows_path(self, attempt: str) -> Path:
        """Return the path of an attempt's rows."""
        return self.directory / f"{attempt}{_ROWS}"

    def make(self) -> None:
        """Create the directory durably."""
        self._fs.make_directory(self.directory)

    def decided_commit(self) -> Commit | None:
        """Return the commit that is decided and not complete; None if there is none."""
        values = self._read(DECISION_FILE)
        return None if values is None else Commit.from_json(values, where=str(self.directory / DECISION_FILE))

    def decide(self, commit: Commit) -> None:
        """Store the decision durably: from here on the commit can only be completed."""
        write_atomically(self._fs, self.directory / DECISION_FILE, encode_document(commit.to_json()))

    def last_batch(self) -> int:
        """Return the number of the last batch in the log; -1 before the first."""
        values = self._read(_DONE)
        return -1 if values is None else int(values["batch"])

    def finish(self, commit: Commit) -> None:
        """Record that a batch is in the log, then drop its decision and rows."""
        if commit.batch > self.last_batch():
            values = {key: value for key, value in commit.to_json().items() if key != "staged"}
            write_atomically(self._fs, self.directory / _DONE, encode_document(values))
        self.drop_commit()

    def drop_commit(self) -> None:
        """Remove the decision and all staged rows."""
        self._fs.unlink(self.directory / DECISION_FILE)
        # The decision goes before its rows: a decision without rows could never be completed.
        self._fs.sync_directory(self.directory)
        self.discard(None)

    def discard(self, attempts: list[str] | None) -> None:
        """Remove the rows of these attempts; None: of all attempts."""
        paths = self.rows() if attempts is None else [self.rows_path(attempt) for attempt in attempts]
        for path in paths:
            self._fs.unlink(path)

    def rows(self) -> list[Path]:
        """Return the files of staged rows, including unfinished ones."""
        return sorted(self.directory.glob(f"*{_ROWS}")) if self.directory.is_dir() else []

    def sweep(self, rows_before: float, done_before: float) -> None:
        """Remove old rows, and the directory of a query that has ended.

        Parameters
        ----------
        rows_before, done_before
            Seconds since the epoch. Rows written before `rows_before` go. The record of a query's last batch goes if it
            was written before `done_before`; that of a query with one batch, before `rows_before`.
        """
        if (self.directory / DECISION_FILE).exists():
            return
        for path in self.rows():
            if _mtime(path) < rows_before:
                self._fs.unlink(path)
        if self.rows():
            return
        written = _mtime(self.directory / _DONE, self.directory)
        if written < done_before or (written < rows_before and self._has_ended()):
            self._fs.unlink(self.directory / _DONE)
            self._fs.unlink(self.directory / f".{_DONE}.tmp")
            self._fs.unlink(self.directory / f".{DECISION_FILE}.tmp")
            self._fs.remove_directory(self.directory)

    def _has_ended(self) -> bool:
        """Whether no batch of the query can be repeated."""
        values = self._read(_DONE)
        return values is None or str(values.get("query")).startswith(JOB_PREFIX)

    def _read(self, name: str) -> dict[str, Any] | None:
        path = self.directory / name
        try:
            return decode_document(read_whole(path), where=str(path))
        except FileNotFoundError:
            return None


def _mtime(*paths: Path) -> float:
    """Return the modification time of the first path that exists; infinity if none does."""
    for path in paths:
        try:
            return path.stat().st_mtime
        except FileNotFoundError:
            continue
    return float("inf")
