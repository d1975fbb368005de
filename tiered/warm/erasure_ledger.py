"""The local copy of the ledger of erasures: ``erasures.json``, and the values of the open ones (see `format.erasure`).

``erasures-wait.json`` beside it tells other processes what the open erasures wait for. Nothing depends on that file.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from uuid import UUID

import pyarrow as pa

from ..errors import CorruptionError, TieredError
from ..format.erasure import (
    LEDGER_FILE,
    VALUES_FOLDER,
    LedgerEntry,
    decode_values,
    encode_values,
    ledger_from_json,
    ledger_to_json,
)
from .document_file import read_document, write_document
from .file_lock import directory_lock
from .file_value_cache import FileValueCache
from .filesystem import FileSystem, read_whole, write_atomically

_WAIT_SECONDS = 30.0
_WAIT_FILE = "erasures-wait.json"


class ErasureLedger:
    """The ledger in one store's directory. Several processes may change it; each change is atomic and durable."""

    def __init__(self, fs: FileSystem, root: Path) -> None:
        self._fs = fs
        self._path = root / LEDGER_FILE
        self._folder = root / VALUES_FOLDER
        self._wait_path = root / _WAIT_FILE
        self._cache: FileValueCache[tuple[LedgerEntry, ...]] = FileValueCache()

    def read(self) -> tuple[LedgerEntry, ...]:
        """Return all erasures, in order of the calls.

        Raises
        ------
        CorruptionError, UnsupportedFormat
        """
        try:
            return self._cache.read(str(self._path), self._read)
        except FileNotFoundError:
            return ()

    def _read(self) -> tuple[LedgerEntry, ...]:
        values = read_document(self._path)
        return ledger_from_json(values, where=str(self._path))

    def read_values(self, erasure: LedgerEntry, kind: pa.DataType) -> pa.Array:
        """Return the values of an open erasure, of a column of type `kind`.

        Raises
        ------
        CorruptionError
            They are missing or damaged.
        """
        path = self._folder.parent / erasure.values_name
        try:
            return decode_values(read_whole(path), kind, erasure.values, where=str(path))
        except FileNotFoundError:
            raise CorruptionError("the values of an open erasure are missing", where=str(path)) from None

    def values_bytes(self, erasure: LedgerEntry) -> bytes | None:
        """Return the values of an erasure as stored; None if they are not here.

        Raises
        ------
        CorruptionError
        """
        try:
            return read_whole(self._folder.parent / erasure.values_name)
        except FileNotFoundError:
            return None

    def has_values(self, erasure: LedgerEntry) -> bool:
        """Whether the values of an erasure are here."""
        return (self._folder.parent / erasure.values_name).exists()

    def write_values(self, erasure: LedgerEntry, data: bytes) -> None:
        """Store the values of an erasure durably, as `format.erasure.encode_values` made them."""
        self._fs.make_directory(self._folder)
        write_atomically(self._fs, self._folder.parent / erasure.values_name, data)

    def begin(self, erasures: tuple[LedgerEntry, ...]) -> None:
        """Write the ledger of a store that no process can open yet; a pass fetches the values of the open erasures."""
        self._write(erasures)

    def add(self, make: Callable[[int], LedgerEntry], values: pa.Array) -> LedgerEntry:
        """Add an erasure, which `make` returns for its number; durable once this returns.

        Raises
        ------
        DiskFull, StoreLocked, CorruptionError, UnsupportedFormat
        """
        with self._held() as entries:
            erasure = make(1 + max((item.number for item in entries), default=0))
            # First, so that no erasure in the ledger is without them.
            self.write_values(erasure, encode_values(values))
            self._write((*entries, erasure))
            return erasure

    def change(
        self, change: Callable[[tuple[LedgerEntry, ...]], tuple[LedgerEntry, ...]]
    ) -> tuple[LedgerEntry, ...]:
        """Replace the ledger by what `change` makes of it; return the new one.

        Raises
        ------
        DiskFull, StoreLocked, CorruptionError, UnsupportedFormat
        """
        with self._held() as entries:
            changed = change(entries)
            if changed != entries:
                self._write(changed)
            return changed

    def waits_for(self, erasure: LedgerEntry) -> str:
        """Return what an open erasure waits for, as the last pass found; empty if none has looked."""
        return self._waiting().get(str(erasure.id), "") if erasure.is_open else ""

    def note_waiting(self, texts: Mapping[UUID, str]) -> None:
        """Write what the open erasures wait for.

        Raises
        ------
        OSError, DiskFull
        """
        values = {str(key): text for key, text in texts.items() if text}
        if values == self._waiting():
            return
        if values:
            write_document(self._fs, self._wait_path, values)
        else:
            self._fs.unlink(self._wait_path)

    def _waiting(self) -> dict[str, str]:
        try:
            values = read_document(self._wait_path)
        except (TieredError, OSError):
            return {}  # not there, or damaged: the next pass writes it anew
        return {key: text for key, text in values.items() if isinstance(text, str)}

    def drop_values(self) -> None:
        """Delete the values of erasures that have ended, and those that a crash kept from the ledger.

        Raises
        ------
        OSError, StoreLocked, CorruptionError, UnsupportedFormat
        """
        if not self._folder.exists():
            return
        with self._held() as entries:
            kept = {item.values_name.removeprefix(VALUES_FOLDER) for item in entries if item.is_open}
            doomed = [path for path in self._folder.iterdir() if path.name not in kept]
            for path in doomed:
                self._fs.unlink(path)
            if doomed:
                self._fs.sync_directory(self._folder)

    def _write(self, erasures: tuple[LedgerEntry, ...]) -> None:
        write_document(self._fs, self._path, ledger_to_json(erasures))

    @contextmanager
    def _held(self) -> Iterator[tuple[LedgerEntry, ...]]:
        with directory_lock(self._path.parent, wait_seconds=_WAIT_SECONDS):
            try:
                entries = self._read()
            except FileNotFoundError:
                entries = ()
            yield entries
