"""The live table of a topic in a bucket in memory, as pyiceberg reads it: from the pointer, and from nothing of ours."""

from __future__ import annotations

import io
import re
from typing import Any, ClassVar

from pyiceberg.io import FileIO, InputFile, InputStream, OutputFile
from pyiceberg.table import StaticTable

from tests.support.memory_store import MemoryStore


class _Stream(io.BytesIO): ...


class _Input(InputFile):
    def __init__(self, location: str, bucket: MemoryStore) -> None:
        super().__init__(location)
        self._bucket = bucket

    @property
    def _data(self) -> bytes:
        key = self.location.removeprefix(self._bucket.url + "/")
        if key not in self._bucket.objects:
            raise FileNotFoundError(key)
        return self._bucket.objects[key][0]

    def __len__(self) -> int:
        return len(self._data)

    def exists(self) -> bool:
        return self.location.removeprefix(self._bucket.url + "/") in self._bucket.objects

    def open(self, seekable: bool = True) -> InputStream:
        return _Stream(self._data)


class MemoryIO(FileIO):
    """Reads the buckets that tests name by their number."""

    buckets: ClassVar[list[MemoryStore]] = []

    def new_input(self, location: str) -> InputFile:
        return _Input(location, self.buckets[int(self.properties["bucket"])])

    def new_output(self, location: str) -> OutputFile:
        raise AssertionError(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        raise AssertionError(location)


class MemoryTable:
    """The newest table of the topics of one name."""

    def __init__(self, bucket: MemoryStore, topic: str) -> None:
        self.bucket = bucket
        self.topic = topic
        MemoryIO.buckets.append(bucket)
        self._options = {
            "py-io-impl": f"{MemoryIO.__module__}.{MemoryIO.__name__}",
            "bucket": str(len(MemoryIO.buckets) - 1),
        }

    def files(self) -> dict[str, int]:
        """Sizes of the files of the folder, by name."""
        folder = re.compile(rf"{self.topic}/[^/]+/table/metadata/(.*)")
        return {
            match[1]: len(data)
            for key, (data, _) in self.bucket.objects.items()
            if (match := folder.fullmatch(key))
        }

    def key(self, name: str) -> str:
        """The key of a file of the folder."""
        (key,) = (
            key for key in self.bucket.objects if re.fullmatch(rf"{self.topic}/.*/table/metadata/{name}", key)
        )
        return key

    def version(self) -> int:
        """The version that the pointer names, or a later one, as readers look for it; 0 without a table."""
        files = self.files()
        if "version-hint.text" not in files:
            version = 0
        else:
            version = int(self.bucket.objects[self.key("version-hint.text")][0])
            assert f"v{version}.metadata.json" in files
        while f"v{version + 1}.metadata.json" in files:
            version += 1
        return version

    def load(self, version: int | None = None) -> Any:
        """The table as pyiceberg opens it."""
        key = self.key(f"v{self.version() if version is None else version}.metadata.json")
        return StaticTable.from_metadata(f"{self.bucket.url}/{key}", properties=self._options)

    def check_whole(self, version: int | None = None, *, time_travel: bool = True) -> int:
        """Assert that everything that a version names is there; return how many objects that is.

        Without `time_travel` the objects of its older snapshots may be gone.
        """
        table = self.load(version)
        objects = set()
        current = table.current_snapshot()
        for snapshot in table.snapshots():
            for manifest in snapshot.manifests(table.io):
                for entry in manifest.fetch_manifest_entry(table.io):
                    if time_travel or snapshot is current:
                        objects.add(entry.data_file.file_path)
        for path in objects:
            assert path.removeprefix(self.bucket.url + "/") in self.bucket.objects, path
        for logged in table.metadata.metadata_log:
            assert logged.metadata_file.removeprefix(self.bucket.url + "/") in self.bucket.objects
        return len(objects)

    def offsets(self, version: int | None = None) -> dict[int, tuple[int, int, int]]:
        """First row, start offset and end of each partition, by the summary."""
        snapshot = self.load(version).current_snapshot()
        summary = snapshot.summary.additional_properties if snapshot else {}
        return {
            int(match[1]): (int(summary[f"tiered.begins.{match[1]}"]), *map(int, value.split("-")))
            for name, value in summary.items()
            if (match := re.fullmatch(r"tiered\.offsets\.(\d+)", name))
        }  # type: ignore[return-value]

    def values(self, version: int | None = None) -> list[tuple[int, int, bytes | None]]:
        """Partition, offset and value of every row, in order."""
        found = self.load(version).scan(selected_fields=("partition", "offset", "value")).to_arrow()
        columns = [found[name].to_pylist() for name in ("partition", "offset", "value")]
        return sorted(zip(*columns, strict=True), key=lambda row: row[:2])
