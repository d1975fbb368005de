"""Reads a live table as an engine does: from the pointer, and from nothing of ours."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

import tiered
from tiered.errors import OffsetOutOfRange


def folder_of(bucket: Path, topic: str) -> Path:
    """The folder with the metadata of the newest topic of a name."""
    (folder,) = (bucket / topic).glob("*/table/metadata")
    return folder


def newest(folder: Path) -> Path:
    """The file that the pointer names, or a later one, as readers look for it."""
    hint = folder / "version-hint.text"
    version = int(hint.read_text()) if hint.exists() else 0
    if version:
        assert hint.read_text() == str(version), "DuckDB reads the hint literally"
    while (folder / f"v{version + 1}.metadata.json").exists():
        version += 1
    return folder / f"v{version}.metadata.json"


def load(folder: Path) -> Any:
    """The table as pyiceberg opens it."""
    from pyiceberg.table import StaticTable

    return StaticTable.from_metadata(str(newest(folder)))


def path_of(url: str) -> Path:
    return Path(url.removeprefix("file://"))


def check_whole(folder: Path) -> int:
    """Assert that everything that the kept snapshots name is there; return the number of snapshots."""
    table = load(folder)
    for snapshot in table.snapshots():
        for manifest in snapshot.manifests(table.io):
            assert path_of(manifest.manifest_path).stat().st_size == manifest.manifest_length
            for entry in manifest.fetch_manifest_entry(table.io):
                assert path_of(entry.data_file.file_path).exists(), entry.data_file.file_path
    return len(table.snapshots())


def rows(folder: Path) -> list[tuple[int, int, Any]]:
    """Partition, offset and value of every row, in order."""
    found = load(folder).scan().to_arrow()
    names = sorted(name for name in found.column_names if name not in ("partition", "offset", "timestamp"))
    return _sorted(_column(found[name]) for name in ("partition", "offset", "timestamp", *names))


def _column(values: pa.ChunkedArray) -> list[Any]:
    """The values; pyiceberg reads a list that is null as an empty one."""
    return [None if value == [] else value for value in values.to_pylist()]


def _sorted(columns: Iterable[list[Any]]) -> list[Any]:
    return sorted(zip(*columns, strict=True), key=lambda row: row[:2])


def offsets(folder: Path) -> dict[int, tuple[int, int, int]]:
    """First row, start offset and end of each partition, by the summary."""
    summary = load(folder).current_snapshot().summary.additional_properties
    found = {}
    for name, value in summary.items():
        if match := re.fullmatch(r"tiered\.offsets\.(\d+)", name):
            start, end = map(int, value.split("-"))
            found[int(match[1])] = int(summary[f"tiered.begins.{match[1]}"]), start, end
    return found


def expected(bucket: str, topic: str, ends: dict[int, tuple[int, int, int]]) -> list[tuple[int, int, Any]]:
    """The rows of a scan of the bucket at the offsets of a snapshot."""
    found: list[Any] = []
    with tiered.open(bucket) as store:
        for partition, (_, start, end) in ends.items():
            if start == end:
                continue
            try:
                scan = store.topic(topic).scan(partitions=[partition], start_offset=start, end_offset=end)
            except OffsetOutOfRange:
                raise AssertionError(f"partition {partition}: {start}-{end}") from None
            table = scan.to_arrow().drop(["topic"])
            names = sorted(
                name for name in table.column_names if name not in ("partition", "offset", "timestamp")
            )
            found += _sorted(_column(table[name]) for name in ("partition", "offset", "timestamp", *names))
    return sorted(found, key=lambda row: row[:2])


def check_rows(folder: Path, topic: str) -> int:
    """Assert that the table has the rows of a scan at its offsets, and below the start offset only the first object's rest."""
    ends = offsets(folder)
    found = rows(folder)
    bucket = folder.parents[3]
    assert [row for row in found if row[1] >= ends[row[0]][1]] == expected(f"file://{bucket}", topic, ends)
    for partition, (begins, start, _) in ends.items():
        assert [row[1] for row in found if row[0] == partition and row[1] < start] == [*range(begins, start)]
    return len(found)
