"""The bucket of the model: every request is one step, and a request whose answer was lost may land at any later time.

Outcomes of a request, besides the ordinary one:

timeout     The client is told that nobody knows. The request is under way, and takes effect at any later step, with
            the condition that it bears, or never. (Soon: the answer was lost. Never: the request was.)
own 412     A conditional PUT took effect, the SDK repeated it, and the client gets the second answer.
twice       It took effect and the client knows; the SDK had sent it twice, and the other one is under way.
busy        A GET, HEAD or LIST without an answer.
killed      The client's process dies before the request, and asks for nothing more.

ETags are hashes of the content, as S3 has them: equal content has an equal ETag. Time is the server's, and moves only
by `SimBucket.passing_time`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from types import TracebackType
from typing import Any, Self

from tests.protocol.explorer import OK, Footprint, Request, World
from tiered.cold.object_store.protocol import Bytes, ObjectInfo, Versioned
from tiered.errors import ColdStorageError, ObjectNotFound, PreconditionFailed

TIMEOUT, OWN_412, TWICE, BUSY, KILLED = "timeout", "own 412", "twice", "busy", "killed"
CLOCK = "clock"


class Killed(OSError):
    """What an actor meets whose process was killed; nothing that it does about it has an effect."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One object as it lies in the bucket."""

    data: bytes
    etag: str
    modified: float


@dataclass(frozen=True, slots=True)
class Sent:
    """One PUT or DELETE as it was sent; its copies have the same id."""

    id: str
    process: str
    keys: tuple[str, ...]
    data: bytes | None = None
    if_match: str | None = None
    if_none_match: bool = False


class SimBucket:
    """Objects, requests under way, and the server's clock.

    Attributes
    ----------
    faulty
        ``faulty(process, verb, key)``: the outcomes that a request can have besides the ordinary one.
    written, deleting
        Called when a PUT took effect, and before a DELETE does.
    watched
        Keys on which the check of a DELETE depends.
    """

    def __init__(self, world: World) -> None:
        self.world = world
        self.objects: dict[str, Stored] = {}
        self.now = 1000.0
        self.faulty: Callable[[str, str, str], tuple[str, ...]] = lambda process, verb, key: ()
        self.written: Callable[[Sent, str, bytes], None] = lambda sent, key, data: None
        self.deleting: Callable[[Sent, str], None] = lambda sent, key: None
        self.watched: tuple[str, ...] = ()
        self.killed: set[str] = set()
        world.fingerprints.append(self._fingerprint)

    def _fingerprint(self) -> Hashable:
        return self.now, frozenset((key, item.etag, item.modified) for key, item in self.objects.items())

    def passing_time(self, seconds: float, times: int = 1) -> None:
        """Let the server's clock move on, so many times, whenever the search likes."""
        name = f"time {times}"

        def move(outcome: str) -> None:
            del self.world.underway[name]
            self.now += seconds
            if times > 1:
                self.passing_time(seconds, times - 1)

        self.world.underway[name] = Request(f"{seconds:g} seconds pass", Footprint((), (CLOCK,)), move)

    def request(
        self, verb: str, key: str, footprint: Footprint, take: Callable[[], Any], sent: Sent | None = None
    ) -> Any:
        """Let the running actor make one request."""
        process = self.world.process
        if process in self.killed:
            raise Killed
        faults = self.faulty(process, verb, key)

        def outcome(chosen: str) -> Any:
            if chosen == KILLED:
                self.killed.add(process)
                raise Killed
            if chosen == BUSY:
                raise ColdStorageError(f"{verb} {key}: no answer", retryable=True)
            if chosen == TIMEOUT:
                assert sent is not None
                self._send(sent, footprint)
                raise ColdStorageError(f"{verb} {key}: timeout", retryable=True)
            answer = take()
            if chosen == OWN_412:
                raise PreconditionFailed(f"412 {key}")
            if chosen == TWICE:
                assert sent is not None
                self._send(sent, footprint)
            return answer

        name = key.rpartition("/")[2] if verb != "list" else key[-20:]
        return self.world.step(Request(f"{verb} {name}", footprint, outcome, (OK, *faults)))

    def _send(self, sent: Sent, footprint: Footprint) -> None:
        name = f"late {sent.id}"

        def land(outcome: str) -> None:
            del self.world.underway[name]
            with suppress(PreconditionFailed):
                self.apply(sent)

        # Other requests of its kind are told apart by their names, which hold the actor and its count.
        self.world.underway[name] = Request(
            f"{'delete' if sent.data is None else 'put'} {sent.keys[0].rpartition('/')[2]} lands",
            footprint,
            land,
        )

    def apply(self, sent: Sent) -> str:
        """Let a PUT or DELETE take effect."""
        if sent.data is None:
            for key in sent.keys:
                if key in self.objects:
                    self.deleting(sent, key)
                    del self.objects[key]
            return ""
        key = sent.keys[0]
        known = self.objects.get(key)
        if sent.if_none_match and known is not None:
            raise PreconditionFailed(f"412 {key}")
        if sent.if_match is not None and (known is None or known.etag != sent.if_match):
            raise PreconditionFailed(f"412 {key}")
        etag = blake2b(sent.data, digest_size=8).hexdigest()
        self.objects[key] = Stored(sent.data, etag, self.now)
        self.written(sent, key, sent.data)
        return etag

    def info(self, key: str) -> ObjectInfo:
        found = self.objects.get(key)
        if found is None:
            raise ObjectNotFound(f"404 {key}")
        return ObjectInfo(key, len(found.data), found.etag, found.modified)


class SimStore:
    """See `ObjectStore`: one client of the bucket. An upload behaves as that of S3 does (`cold/s3_upload.py`)."""

    conditional_writes = True
    url = "sim://bucket"

    def __init__(self, bucket: SimBucket) -> None:
        self.bucket = bucket

    def get(self, key: str) -> Versioned:
        def take() -> Versioned:
            self.bucket.info(key)
            found = self.bucket.objects[key]
            return Versioned(found.data, found.etag)

        return self.bucket.request("get", key, Footprint((key,)), take)

    def get_range(self, key: str, start: int, length: int) -> bytes:
        return self.get(key).data[start : start + length]

    def get_ranges(self, key: str, ranges: Iterable[tuple[int, int]]) -> list[bytes]:
        return [self.get_range(key, start, length) for start, length in ranges]

    def put(self, key: str, data: Bytes, *, if_match: str | None = None, if_none_match: bool = False) -> str:
        world = self.bucket.world
        sent = Sent(
            f"{world.name} {world.number()}", world.process, (key,), bytes(data), if_match, if_none_match
        )
        footprint = Footprint((CLOCK,), (key,))
        return self.bucket.request("put", key, footprint, lambda: self.bucket.apply(sent), sent)

    def upload(self, key: str) -> SimUpload:
        return SimUpload(self, key)

    def stat(self, key: str) -> ObjectInfo:
        return self.bucket.request("stat", key, Footprint((key,)), lambda: self.bucket.info(key))

    def folders(self, prefix: str) -> list[str]:
        def take() -> list[str]:
            below = [key[len(prefix) :] for key in self.bucket.objects if key.startswith(prefix)]
            return sorted({rest.partition("/")[0] for rest in below if "/" in rest})

        return self.bucket.request("list", prefix, Footprint((prefix or "/",)), take)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        def take() -> list[ObjectInfo]:
            return [self.bucket.info(key) for key in sorted(self.bucket.objects) if key.startswith(prefix)]

        return iter(self.bucket.request("list", prefix, Footprint((prefix,)), take))

    def delete(self, keys: Iterable[str]) -> None:
        world, found = self.bucket.world, tuple(keys)
        sent = Sent(f"{world.name} {world.number()}", world.process, found)
        self.bucket.request(
            "delete",
            found[0],
            Footprint((CLOCK, *self.bucket.watched), found),
            lambda: self.bucket.apply(sent) and None,
            sent,
        )

    def close(self) -> None: ...


class SimUpload:
    """One upload: a PUT that only creates, a look after an error whether it landed, and a check of what arrived."""

    def __init__(self, store: SimStore, key: str) -> None:
        self._store, self._key, self._data = store, key, b""

    def write(self, data: Bytes) -> int:
        self._data += bytes(data)
        return len(data)

    def commit(self) -> ObjectInfo:
        try:
            self._store.put(self._key, self._data, if_none_match=True)
        except ColdStorageError as error:
            try:
                return self._store.stat(self._key)
            except ColdStorageError:
                raise error from None
        return self._store.stat(self._key)

    def abort(self) -> None: ...

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
