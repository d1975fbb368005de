"""The manifests of a snapshot: what each names, and those of the next snapshot.

- A manifest with fewer than `CLOSED_OBJECTS` entries is *open*: the next snapshot writes its entries again. The others
  never change, except that one is rewritten when an object of it is gone.
- A snapshot has at most one open manifest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..cold.manifest.keys import parse_object_name
from .avro_files import AvroFiles
from .schema import OFFSET_ID

CLOSED_OBJECTS = 500
"""The number of entries from which a manifest is no longer rewritten at each publication."""

OffsetsByName = dict[int, dict[str, tuple[int, int]]]
"""Objects by partition and name, with base and end offset."""


class NamedFile(NamedTuple):
    """An object as a manifest names it."""

    partition: int
    base_offset: int
    end_offset: int
    url: str
    bytes: int

    @property
    def name(self) -> str:
        """The last part of the URL."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class _Closed:
    """A manifest whose entries are not in memory, and the range of offsets of its objects by partition."""

    file: Any
    ranges: Mapping[int, tuple[int, int]]

    @classmethod
    def of(cls, file: Any, entries: Iterable[Any]) -> _Closed:
        ranges: dict[int, tuple[int, int]] = {}
        for entry in entries:
            partition, base, end = _offsets(entry)
            low, high = ranges.get(partition, (base, end))
            ranges[partition] = min(low, base), max(high, end)
        return cls(file, ranges)

    def may_have(self, gone: OffsetsByName) -> bool:
        return any(
            base < self.ranges[partition][1] and end > self.ranges[partition][0]
            for partition in gone.keys() & self.ranges.keys()
            for base, end in gone[partition].values()
        )


@dataclass(frozen=True, slots=True)
class TableManifests:
    """The manifests of one snapshot; the default is a snapshot without an object."""

    _closed: tuple[_Closed, ...] = ()
    _open: tuple[Any, ...] = ()
    _open_file: Any = None

    @classmethod
    def read(cls, files: AvroFiles, list_url: str) -> TableManifests:
        """Read the manifests of a snapshot by its list.

        Raises
        ------
        CorruptionError, ColdStorageError
        """
        closed: list[_Closed] = []
        open_entries, open_file = (), None
        for file in files.read_list(list_url):
            entries = tuple(files.read_manifest(file))
            if len(entries) < CLOSED_OBJECTS and open_file is None:
                open_entries, open_file = entries, file
            else:
                closed.append(_Closed.of(file, entries))
        return cls(tuple(closed), open_entries, open_file)

    @property
    def files(self) -> list[Any]:
        """What the manifest list says of each manifest."""
        files = [manifest.file for manifest in self._closed]
        return files if self._open_file is None else [*files, self._open_file]

    @property
    def objects(self) -> int:
        """How many objects they name."""
        return sum(file.added_files_count + file.existing_files_count for file in self.files)

    @property
    def records(self) -> int:
        """How many records these objects have."""
        return sum(file.added_rows_count + file.existing_rows_count for file in self.files)

    def entries(self, files: AvroFiles) -> Iterator[Any]:
        """Yield the entries of all manifests; those of closed ones are read."""
        yield from self._open
        for manifest in self._closed:
            yield from files.read_manifest(manifest.file)

    def names(self, files: AvroFiles) -> OffsetsByName:
        """Return all objects that they name."""
        names: OffsetsByName = {}
        for entry in self.entries(files):
            partition, base, end = _offsets(entry)
            names.setdefault(partition, {})[_name(entry)] = base, end
        return names

    def named(self, files: AvroFiles) -> Iterator[NamedFile]:
        """Yield all objects that they name."""
        for entry in self.entries(files):
            yield NamedFile(*_offsets(entry), entry.data_file.file_path, entry.data_file.file_size_in_bytes)

    def next(
        self,
        files: AvroFiles,
        metadata: Any,
        gone: OffsetsByName,
        added: Iterable[Any],
        tails: Mapping[int, int],
        *,
        snapshot_id: int,
        sequence_number: int,
    ) -> tuple[TableManifests, int]:
        """Write the manifests of the next snapshot; return all of its manifests, and how many objects it leaves out.

        Parameters
        ----------
        metadata
            The table's metadata, for its schema and partition spec.
        gone
            The objects that the snapshot leaves out.
        added
            The data files that it adds.
        tails
            The first offset of each partition whose objects will be replaced soon: they stay in the open manifest.

        Raises
        ------
        CorruptionError, ColdStorageError
        """
        from pyiceberg.manifest import ManifestEntry, ManifestEntryStatus

        def write(entries: list[Any]) -> Any:
            file = files.write_manifest(
                entries, metadata.schema(), metadata.spec(),
                snapshot_id=snapshot_id, sequence_number=sequence_number,
            )  # fmt: skip
            for entry in entries:
                entry.status = ManifestEntryStatus.EXISTING
            return file

        def stays(entry: Any) -> bool:
            partition, base, _ = _offsets(entry)
            return partition not in tails or base < tails[partition]

        closed, pool, removed = self._reopened(files, gone)
        fresh = [
            ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED,
                snapshot_id=snapshot_id,
                sequence_number=sequence_number,
                file_sequence_number=sequence_number,
                data_file=file,
            )
            for file in added
        ]
        if not removed and not fresh:
            return self, 0
        pool += fresh
        rest = sorted(filter(stays, pool), key=_offsets)
        at_the_end = [entry for entry in pool if not stays(entry)]
        while len(rest) >= CLOSED_OBJECTS:
            size = CLOSED_OBJECTS if len(rest) >= 2 * CLOSED_OBJECTS else len(rest)
            part, rest = rest[:size], rest[size:]
            closed.append(_Closed.of(write(part), part))
        open_entries = [*rest, *at_the_end]
        open_file = write(open_entries) if open_entries else None
        return TableManifests(tuple(closed), tuple(open_entries), open_file), removed

    def _reopened(self, files: AvroFiles, gone: OffsetsByName) -> tuple[list[_Closed], list[Any], int]:
        """Return the manifests that stay closed, the entries that are written again, and how many are left out."""
        pool: list[Any] = []
        removed = 0
        closed: list[_Closed] = []
        for manifest in self._closed:
            entries = files.read_manifest(manifest.file) if manifest.may_have(gone) else []
            live = [entry for entry in entries if not _is_gone(entry, gone)]
            if len(live) == len(entries):
                closed.append(manifest)
            else:
                pool += live
                removed += len(entries) - len(live)
        live = [entry for entry in self._open if not _is_gone(entry, gone)]
        return closed, [*pool, *live], removed + len(self._open) - len(live)


def _offsets(entry: Any) -> tuple[int, int, int]:
    """Return partition, base offset and end offset of an entry's object.

    The bounds are those of its rows. An object that lacks records begins before them, as its name says, and may have none.
    """
    file = entry.data_file
    name = parse_object_name(_name(entry))
    bounds = [(side or {}).get(OFFSET_ID) for side in (file.lower_bounds, file.upper_bounds)]
    low, last = (None if side is None else int.from_bytes(side, "little", signed=True) for side in bounds)
    base = name.base_offset if name is not None else low or 0
    return file.partition[0], base, base + 1 if last is None else last + 1


def _name(entry: Any) -> str:
    name: str = entry.data_file.file_path.rpartition("/")[2]
    return name


def _is_gone(entry: Any, gone: OffsetsByName) -> bool:
    return _name(entry) in gone.get(entry.data_file.partition[0], ())
