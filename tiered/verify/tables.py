"""The verification of a live table: readers find it, it loads, has each row of its offsets once, and lacks no object."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import suppress
from importlib.util import find_spec
from itertools import pairwise

from ..cold.manifest.keys import PartitionKeys
from ..cold.manifest.partition_manifest import PartitionManifest
from ..cold.object_store.protocol import ObjectStore
from ..errors import CorruptionError, ObjectNotFound
from ..format.document import SPARSE_FEATURES
from ..format.topic_meta import TopicMeta
from ..table.iceberg_errors import iceberg_errors
from ..table.summary_offsets import read_offsets
from ..table.table_folder import TableFolder
from ..table.table_manifests import NamedFile, TableManifests
from ..table.table_reader import TableReader
from .findings import Findings
from .report import Item, Problem

_VERSIONS_MAX = 5


def check_table(store: ObjectStore, meta: TopicMeta, findings: Findings) -> None:
    """Check the newest version of a topic's table; nothing if the topic has none.

    Passes, merges and sweeps may run beside it: they delete no object that the newest version names. So a problem counts only if
    its version is still the newest one after the check; else that one is checked.
    """
    reader = TableReader.of(store, meta.name, meta.topic_id)
    with findings.guard(Item.TABLE, reader.folder.location):
        # A listing first: credentials that were made before there were tables may not read them.
        if next(store.list(reader.folder.prefix), None) is None:
            return
        with findings.guard(Item.TABLE, reader.folder.location):
            _check_versions(reader.folder, findings)
        if reader.newest_values() is None:
            return
        if find_spec("pyiceberg") is None:
            findings.add_unknown(
                reader.folder.location, "needs pyiceberg to be checked: pip install 'tiered[iceberg]'"
            )
            return
        for _ in range(_VERSIONS_MAX):
            version, found = reader.folder.find().version, findings.empty_copy()
            with found.guard(Item.TABLE, reader.folder.location), iceberg_errors(meta.name):
                _check_newest(store, meta, reader, found)
            # Once a later version is there, a sweep deletes what only earlier ones named.
            if not found.problems or reader.folder.find().version == version:
                findings.add(found)
                return
        reason = f"a later version came while each of {_VERSIONS_MAX} was checked"
        findings.add_unknown(reader.folder.location, reason)


def _check_versions(folder: TableFolder, findings: Findings) -> None:
    """Report versions that are missing between others: readers walk from one to the next, and stop there."""
    if not _holes(folder.versions()):
        return
    newest = folder.find().version
    # Again: the first listing may have shown a part of what a sweep deletes.
    versions = folder.versions()
    for before, after in _holes(versions):
        gone = f"version {before + 1} of the table is missing"
        if after > before + 2:
            gone = f"versions {before + 1} to {after - 1} of the table are missing"
        if before == newest:
            hidden = f"readers do not find version {versions[-1]} after that"
            advice = "tiered table TOPIC --take leads them to it"
        else:
            hidden = f"programs that have version {before} open find no later one"
            advice = f"open the table anew in these; a sweep deletes the versions up to {before} in time"
        where = folder.url(before + 1)
        findings.add_problem(Problem(Item.TABLE, where, f"{gone}, and {hidden}", advice=advice))


def _holes(versions: Sequence[int]) -> list[tuple[int, int]]:
    """Return the versions before and after each hole."""
    return [(before, after) for before, after in pairwise(versions) if after > before + 1]


def _check_newest(store: ObjectStore, meta: TopicMeta, reader: TableReader, findings: Findings) -> None:
    newest = reader.newest()
    snapshot = None if newest is None else newest[1].current_snapshot()
    if newest is None or snapshot is None:
        return
    where = reader.folder.url(newest[0])
    offsets = read_offsets(store, reader.folder.prefix, snapshot.summary.additional_properties)
    named: dict[int, list[NamedFile]] = {}
    for file in TableManifests.read(reader.files, snapshot.manifest_list).named(reader.files):
        named.setdefault(file.partition, []).append(file)
    for partition in sorted(offsets.keys() | named.keys()):
        with findings.guard(Item.TABLE, where):
            _, end, begins = offsets.get(partition, (0, 0, 0))
            files = sorted(named.get(partition, ()), key=lambda file: file.base_offset)
            _check_rows(partition, begins, end, _with_ends(store, meta, partition, files, end), where)
            _check_present(store, meta, partition, files)


def _with_ends(
    store: ObjectStore, meta: TopicMeta, partition: int, files: Sequence[NamedFile], end: int
) -> list[NamedFile]:
    """Return the files with the ends of their objects: an object that lacks records ends behind its last one."""
    manifest = PartitionManifest(store, meta.name, meta.topic_id, partition)
    loaded = manifest.load()
    if loaded is None or SPARSE_FEATURES.isdisjoint(loaded.head.features):
        return list(files)
    ends = {entry.name: entry.end_offset for entry in manifest.entries(loaded.head)}
    # An object that the head does not name any more may have lacked records as well.
    bases = [*(file.base_offset for file in files[1:]), end]
    return [
        file._replace(end_offset=ends.get(file.name, max(file.end_offset, base)))
        for file, base in zip(files, bases if files else (), strict=True)
    ]


def _check_rows(partition: int, begins: int, end: int, files: Iterable[NamedFile], where: str) -> None:
    at = begins
    for file in files:
        if file.base_offset != at:
            wrong = "has twice" if file.base_offset < at else "lacks"
            raise CorruptionError(
                f"the table {wrong} records of partition {partition}",
                where=where,
                offsets=(min(at, file.base_offset), max(at, file.base_offset)),
            )
        at = file.end_offset
    if at != end:
        raise CorruptionError(
            f"the table says that partition {partition} ends at {end}, and its objects end at {at}",
            where=where,
        )


def _check_present(store: ObjectStore, meta: TopicMeta, partition: int, files: Iterable[NamedFile]) -> None:
    keys = PartitionKeys.of(meta.name, meta.topic_id, partition)
    sizes = {info.key.rpartition("/")[2]: info.size for info in store.list(keys.data_prefix)}
    for file in files:
        size = sizes.get(file.name)
        if size is None:
            # A listing may lack an object, so each missing one is requested itself (promise P10).
            with suppress(ObjectNotFound):
                size = store.stat(keys.data(file.name)).size
        if size != file.bytes:
            reason = "is missing" if size is None else f"has {size} bytes, and {file.bytes} in the table"
            raise CorruptionError(
                f"an object of the table {reason}",
                where=file.url,
                offsets=(file.base_offset, file.end_offset),
            )
