"""Pauses: an operator stops all passes over a topic or the whole store until a resume.

A pause is a small file, ``paused.json``, in the topic's directory or in the store's. So it holds for every process and
survives restarts. It takes effect with the next action, in a running pass too; a running action is completed. A paused
topic is not offloaded, evicted, expired, compressed, merged, scrubbed or swept. Appends and reads go on. The writer still
rolls its segments, and with ``sync = "cold"`` an append still publishes its records.

A file that cannot be read counts as a pause, because a wrong pause does no lasting harm.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from ..base.caller import whoami
from ..errors import ConfigError, ReadOnly, TieredError, TopicNotFound
from ..format.timestamps import to_datetime
from ..warm.catalog import TOPICS_DIRECTORY
from ..warm.document_file import find_document, write_document
from ..warm.filesystem import FileSystem, device_errors

PAUSED_FILE = "paused.json"


@dataclass(frozen=True, slots=True)
class Pause:
    """Beginning (microseconds since the epoch; None if the file cannot be read), user and reason of a pause."""

    since_us: int | None
    by: str
    reason: str = ""
    whole_store: bool = False

    def __str__(self) -> str:
        text = "paused with the whole store" if self.whole_store else "paused"
        if self.since_us is not None:
            text += f" since {to_datetime(self.since_us).replace(microsecond=0, tzinfo=None).isoformat()}Z"
        return f"{text} by {self.by}" + (f": {self.reason}" if self.reason else "")


class Pauses:
    """The pauses of one store; each call reads the disk. Thread-safe.

    Parameters
    ----------
    root
        The store's directory; None for a bucket alone, where nothing is paused.
    clock
        Microseconds since the epoch.
    """

    def __init__(self, root: Path | None, fs: FileSystem, clock: Callable[[], int]) -> None:
        self._root = root
        self._fs = fs
        self._clock = clock

    def of(self, topic: str) -> Pause | None:
        """Return the pause of a topic: its own, else that of the whole store."""
        if self._root is None:
            return None
        return _read(self._directory(topic)) or self.of_store()

    def of_store(self) -> Pause | None:
        """Return the pause of the whole store."""
        if self._root is None:
            return None
        pause = _read(self._root)
        return None if pause is None else replace(pause, whole_store=True)

    def among(self, topics: Iterable[str]) -> dict[str, Pause]:
        """Return the pauses of those `topics` that are paused, by name."""
        if self._root is None:
            return {}
        whole = self.of_store()
        found = {name: _read(self._directory(name)) or whole for name in topics}
        return {name: pause for name, pause in found.items() if pause is not None}

    def pause(self, topic: str | None, reason: str = "") -> Pause:
        """Pause a topic, or with None the whole store, durably; replaces an earlier pause.

        Raises
        ------
        ReadOnly, TopicNotFound, DiskFull
        TieredError
            The disk failed.
        """
        directory = self._existing_directory(topic)
        pause = Pause(self._clock(), whoami(), " ".join(str(reason).split()), topic is None)
        values = {name: value for name, value in asdict(pause).items() if name != "whole_store"}
        path = directory / PAUSED_FILE
        with device_errors(path):
            write_document(self._fs, path, values)
        return pause

    def resume(self, topic: str | None) -> bool:
        """End the pause of a topic, or with None that of the whole store; return whether it was paused.

        Raises
        ------
        ConfigError
            The whole store is paused, so the topic would stay paused.
        ReadOnly, TopicNotFound
        TieredError
            The disk failed.
        """
        path = self._existing_directory(topic) / PAUSED_FILE
        whole = self.of_store()
        if topic is not None and whole is not None:
            raise ConfigError(f"topic {topic!r} is {whole}; tiered resume --all ends that pause")
        if not path.exists():
            return False
        with device_errors(path):
            self._fs.unlink(path)
            self._fs.sync_directory(path.parent)
        return True

    def _existing_directory(self, topic: str | None) -> Path:
        if self._root is None:
            raise ReadOnly("a bucket alone has no passes to pause; name the local store")
        directory = self._root if topic is None else self._directory(topic)
        if not directory.is_dir():
            raise TopicNotFound(f"no topic {topic!r} in {self._root}")
        return directory

    def _directory(self, topic: str) -> Path:
        assert self._root is not None
        return self._root / TOPICS_DIRECTORY / topic


def _read(directory: Path) -> Pause | None:
    try:
        values = find_document(f"{directory}/{PAUSED_FILE}")
        if values is None:
            return None
        return Pause(int(values["since_us"]), str(values["by"]), str(values["reason"]))
    except NotADirectoryError:
        return None
    except (TieredError, OSError, KeyError, TypeError, ValueError) as error:
        return Pause(None, "a file that cannot be read", f"{type(error).__name__}: {error}")
