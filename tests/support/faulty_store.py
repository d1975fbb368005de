"""An object store whose chosen operations fail, at the level of the protocol: fast, for memory and file stores.

Operations are numbered from 0 in the order in which they are asked for; a fault strikes the operation of its
number. Which faults make sense depends on the verb: see `FAULTS`.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TypeVar

from tests.support.delegate import Delegate
from tiered.cold.object_store.protocol import Bytes, ObjectInfo, ObjectStore, Upload, Versioned
from tiered.errors import ColdStorageError, ObjectNotFound, PreconditionFailed

T = TypeVar("T")

_PASSING = ("busy", "denied")
_READING = (*_PASSING, "gone", "truncated", "flipped", "other etag")
_WRITING = (*_PASSING, "answer lost", "repeated", "late by 1", "late by 3", "late by 9")

FAULTS: Mapping[str, tuple[str, ...]] = {
    "get": _READING,
    "get_range": (*_PASSING, "gone", "truncated", "flipped"),
    "stat": (*_PASSING, "gone", "truncated"),
    "list": (*_PASSING, "broken off"),
    "folders": _PASSING,
    "put": (*_WRITING, "conflict", "other etag"),
    "upload": (*_WRITING, "conflict", "damaged", "cut"),
    "delete": (*_PASSING, "answer lost"),
}
"""Verb to kinds of fault.

busy         500, 503, a timeout or a reset before the request took effect
denied       403
gone         404 for an object that is there
truncated    fewer bytes than there are; of `stat`: a smaller size
flipped      one bit is another
other etag   not the ETag under which it was read or written
broken off   a listing ends in an error after its first object
answer lost  it took effect, and nobody says so
repeated     it took effect, the SDK sent it again, and the answer is the second one's
late by n    a timeout, and it takes effect n operations later
conflict     409: nothing took effect
damaged, cut  what arrived was found to be something else, and stays in the bucket
"""


@dataclass(frozen=True, slots=True)
class Operation:
    """One operation that was asked for."""

    verb: str
    key: str


class FaultyStore(Delegate):
    """See `ObjectStore`. Passes on to `inner`, but for the operations that `faults` numbers.

    Attributes
    ----------
    operations
        What was asked for, in order.
    struck
        The faults that happened, by kind.
    written
        Key of every object that was written, with each content.
    """

    def __init__(self, inner: ObjectStore, faults: Mapping[int, str] | None = None) -> None:
        super().__init__(inner)
        self.faults = dict(faults or {})
        self.operations: list[Operation] = []
        self.struck: Counter[str] = Counter()
        self.struck_keys: list[str] = []
        self.written: list[tuple[str, bytes]] = []
        self.deleted: list[str] = []
        self._late: list[tuple[int, Callable[[], None]]] = []
        self._quiet = False
        self._lock = threading.RLock()

    def get(self, key: str) -> Versioned:
        with self._lock:
            fault = self._meet("get", key)
            found = self.inner.get(key)
            if fault == "other etag":
                return replace(found, etag=f"{found.etag}-other")
            return replace(found, data=_spoilt(found.data, fault))

    def get_range(self, key: str, start: int, length: int) -> bytes:
        with self._lock:
            fault = self._meet("get_range", key)
            return _spoilt(self.inner.get_range(key, start, length), fault)

    def get_ranges(self, key: str, ranges: Iterable[tuple[int, int]]) -> list[bytes]:
        return [self.get_range(key, start, length) for start, length in ranges]

    def put(self, key: str, data: Bytes, *, if_match: str | None = None, if_none_match: bool = False) -> str:
        body = bytes(data)

        def write() -> str:
            etag = self.inner.put(key, body, if_match=if_match, if_none_match=if_none_match)
            self.written.append((key, body))
            return etag

        with self._lock:
            fault = self._meet("put", key)
            if fault == "conflict" and if_match is None and not if_none_match:
                fault = None  # only a condition can conflict
            etag = self._write("put", key, fault, write)
        return f"{etag}-other" if fault == "other etag" else etag

    def upload(self, key: str) -> Upload:
        return _FaultyUpload(self, key)

    def stat(self, key: str) -> ObjectInfo:
        with self._lock:
            fault = self._meet("stat", key)
            found = self.inner.stat(key)
            return replace(found, size=found.size - 1) if fault == "truncated" else found

    def folders(self, prefix: str) -> list[str]:
        with self._lock:
            self._meet("folders", prefix)
            return self.inner.folders(prefix)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        with self._lock:
            fault = self._meet("list", prefix)
            found = [*self.inner.list(prefix)]
        if fault == "broken off":
            yield from found[:1]
            raise _lost("list", prefix, self.url)
        yield from found

    def delete(self, keys: Iterable[str]) -> None:
        wanted = [*keys]
        with self._lock:
            fault = self._meet("delete", wanted[0] if wanted else "")
            self.inner.delete(wanted)
            self.deleted += wanted
            if fault == "answer lost":
                raise _lost("delete", wanted[0] if wanted else "", self.url)

    def close(self) -> None: ...

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Within, nothing is counted and nothing fails."""
        self._quiet = True
        try:
            yield
        finally:
            self._quiet = False

    def land(self) -> None:
        """Let everything that is still under way arrive now."""
        with self._lock:
            late, self._late = self._late, []
            for _, write in late:
                write()

    def _meet(self, verb: str, key: str) -> str | None:
        """Count an operation, let what is due arrive, and raise or return the operation's fault."""
        if self._quiet:
            return None
        number = len(self.operations)
        self.operations.append(Operation(verb, key))
        due = [write for at, write in self._late if at <= number]
        self._late = [(at, write) for at, write in self._late if at > number]
        for write in due:
            write()
        fault = self.faults.get(number)
        if fault not in FAULTS[verb]:
            return None
        self.struck[fault] += 1
        self.struck_keys.append(key)
        where = f"cannot {verb} {self.url}/{key}"
        if fault == "busy":
            raise ColdStorageError(f"{where}: 503 SlowDown", retryable=True)
        if fault == "denied":
            raise ColdStorageError(f"{where}: 403 AccessDenied")
        if fault == "gone":
            raise ObjectNotFound(f"{where}: there is no such object")
        return fault

    def _write(self, verb: str, key: str, fault: str | None, write: Callable[[], T]) -> T:
        if fault is not None and fault.startswith("late by "):

            def land() -> None:
                with suppress(PreconditionFailed):
                    write()

            self._late.append((len(self.operations) + int(fault.removeprefix("late by ")), land))
            raise _lost(verb, key, self.url)
        if fault == "conflict":
            raise PreconditionFailed(f"cannot {verb} {self.url}/{key}: 409 ConditionalRequestConflict")
        answer = write()
        if fault == "repeated":
            # An upload knows its own object by its checksum, so it takes the 412 of a repetition for success.
            with suppress(PreconditionFailed) if verb == "upload" else nullcontext():
                return write()
        if fault == "answer lost":
            raise _lost(verb, key, self.url)
        return answer


class _FaultyUpload:
    def __init__(self, store: FaultyStore, key: str) -> None:
        self._store, self._key, self._data = store, key, bytearray()

    def write(self, data: Bytes) -> int:
        self._data += data
        return len(memoryview(data).cast("B"))

    def commit(self) -> ObjectInfo:
        store, key = self._store, self._key
        with store._lock:
            fault = store._meet("upload", key)
            body = _spoilt(bytes(self._data), {"damaged": "flipped", "cut": "truncated"}.get(fault or ""))

            def write() -> ObjectInfo:
                with store.inner.upload(key) as upload:
                    upload.write(body)
                    info = upload.commit()
                store.written.append((key, body))
                return info

            info = store._write("upload", key, fault, write)
            if fault in ("damaged", "cut"):
                raise ColdStorageError(f"{store.url}/{key} arrived damaged; upload it again", retryable=True)
            return info

    def abort(self) -> None:
        self._data.clear()

    def __enter__(self) -> _FaultyUpload:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()


def _lost(verb: str, key: str, url: str) -> ColdStorageError:
    return ColdStorageError(f"cannot {verb} {url}/{key}: no answer", retryable=True)


def _spoilt(data: bytes, fault: str | None) -> bytes:
    if fault == "truncated":
        return data[: len(data) // 2]
    if fault == "flipped" and data:
        middle = len(data) // 2
        return data[:middle] + bytes([data[middle] ^ 4]) + data[middle + 1 :]
    return data
