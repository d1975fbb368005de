"""The folder ``stage/``, where early builds kept the staged rows of Spark's sink: read once, then removed.

Each query has a directory. ``done.json`` names its last batch, ``commit.json`` one that was decided and is not completed.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from ..errors import CorruptionError, UnsupportedFormat
from .document_file import read_document
from .filesystem import FileSystem

STAGE_DIRECTORY = "stage"


class DoneBatch(NamedTuple):
    """The last batch of a query on a topic, and when it was committed, in microseconds since the epoch."""

    topic_id: UUID
    query: str
    number: int
    time_us: int


def done_batches(root: Path) -> list[DoneBatch]:
    """Return the last batches of all queries.

    Raises
    ------
    UnsupportedFormat
        A batch is decided and not completed, which the build that decided it has to do.
    CorruptionError
    """
    last_batches = []
    for directory in _directories(root):
        decision, done = directory / "commit.json", directory / "done.json"
        if decision.exists():
            raise UnsupportedFormat(
                f"{decision} is a batch of Spark that an earlier build decided and did not complete: serve the store once "
                "with that build, which appends the rest"
            )
        if done.exists():
            values = read_document(done)
            try:
                batch = DoneBatch(
                    UUID(values["topic_id"]), str(values["query"]), int(values["batch"]),
                    int(done.stat().st_mtime * 1e6),
                )  # fmt: skip
            except (KeyError, TypeError, ValueError) as error:
                raise CorruptionError(f"a batch does not decode ({error!r})", where=str(done)) from None
            last_batches.append(batch)
    return last_batches


def remove(fs: FileSystem, root: Path) -> None:
    """Remove the folder, with rows that were never committed."""
    for directory in _directories(root):
        for path in sorted(directory.iterdir()):
            fs.unlink(path)
        fs.remove_directory(directory)
    if (root / STAGE_DIRECTORY).is_dir():
        fs.remove_directory(root / STAGE_DIRECTORY)


def _directories(root: Path) -> list[Path]:
    stage = root / STAGE_DIRECTORY
    return [path for path in sorted(stage.iterdir()) if path.is_dir()] if stage.is_dir() else []
