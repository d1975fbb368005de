"""An object store in memory, with faults on demand: the model that the cold tier is tested against."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from types import TracebackType
from typing import Self

from tiered.cold.object_store.protocol import Bytes, ObjectInfo, Versioned
from tiered.errors import ColdStorageError, ObjectNotFound, PreconditionFailed


class MemoryStore:
    """Objects in a dict. ``fault`` is asked before each request: ``fault(verb, key)`` names one or none.

    ``clock`` is the server's, in seconds.
    """

    conditional_writes = True
    url = "memory://bucket/prefix"

    def __init__(self) -> None:
        self.objects: dict[str, tuple[bytes, str]] = {}
        self.requests: list[tuple[str, str, int, int]] = []
        self.writes: list[tuple[str, bytes]] = []
        self.delayed: list[Callable[[], None]] = []
        self.fault: Callable[[str, str], str | None] = lambda verb, key: None
        self.clock: Callable[[], float] = time.time
        self.modified: dict[str, float] = {}
        self._versions = 0

    def _meet(self, verb: str, key: str) -> str | None:
        fault = self.fault(verb, key)
        if fault == "lost" or (fault and verb != "put"):
            raise ColdStorageError(f"{verb} {key}: no answer", retryable=True)
        return fault

    def _find(self, key: str) -> tuple[bytes, str]:
        if key not in self.objects:
            raise ObjectNotFound(f"404 {key}")
        return self.objects[key]

    def get(self, key: str) -> Versioned:
        self._meet("get", key)
        self.requests.append(("get", key, 0, -1))
        return Versioned(*self._find(key))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        self._meet("get", key)
        self.requests.append(("range", key, start, length))
        data = self._find(key)[0][start : start + length]
        if len(data) != length:
            raise ColdStorageError(f"{key}: {len(data)} bytes instead of {length}")
        return data

    def get_ranges(self, key: str, ranges: Iterable[tuple[int, int]]) -> list[bytes]:
        return [self.get_range(key, start, length) for start, length in ranges]

    def put(self, key: str, data: Bytes, *, if_match: str | None = None, if_none_match: bool = False) -> str:
        fault = self._meet("put", key)
        content = bytes(data)

        def apply() -> str:
            now = self.objects[key][1] if key in self.objects else None
            if (if_none_match and now is not None) or (if_match is not None and now != if_match):
                raise PreconditionFailed(f"412 {key}")
            self._versions += 1
            self.objects[key] = (content, f"etag-{self._versions}")
            self.modified[key] = self.clock()
            self.writes.append((key, content))
            return self.objects[key][1]

        def land_late() -> None:
            with suppress(PreconditionFailed):
                apply()

        if fault == "delayed":
            self.delayed.append(land_late)
            raise ColdStorageError(f"put {key}: timeout", retryable=True)
        etag = apply()
        if fault == "answer lost":
            raise ColdStorageError(f"put {key}: timeout", retryable=True)
        if fault == "repeated":
            apply()
        return etag

    def upload(self, key: str) -> MemoryUpload:
        return MemoryUpload(self, key)

    def stat(self, key: str) -> ObjectInfo:
        data, etag = self._find(key)
        return ObjectInfo(key, len(data), etag, self.modified.get(key) or self.clock())

    def folders(self, prefix: str) -> list[str]:
        below = [key[len(prefix) :] for key in self.objects if key.startswith(prefix)]
        return sorted({rest.partition("/")[0] for rest in below if "/" in rest})

    def delete(self, keys: Iterable[str]) -> None:
        raise AssertionError("nothing here may delete")

    def close(self) -> None: ...

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        return (self.stat(key) for key in sorted(self.objects) if key.startswith(prefix))


class MemoryUpload:
    def __init__(self, store: MemoryStore, key: str) -> None:
        self._store, self._key, self._data = store, key, bytearray()
        self.largest_write = 0

    def write(self, data: Bytes) -> int:
        self._data += data
        self.largest_write = max(self.largest_write, len(data))
        return len(data)

    def commit(self) -> ObjectInfo:
        self._store.put(self._key, self._data)
        return self._store.stat(self._key)

    def abort(self) -> None:
        self._data.clear()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()
