"""The test of a server's compare-and-swap, made before the first write to a bucket."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Barrier, BrokenBarrierError, Lock, Thread
from uuid import uuid4

from ...errors import ColdStorageError, ConfigError, CorruptionError, ObjectNotFound, PreconditionFailed
from .protocol import PROBE_PREFIX, ObjectStore

__all__ = ["ProbeOutcome", "check_conditional_writes"]

RACES = 3
RACERS = 8
_RACER_BYTES = 4096  # about the size of a head
_START_SECONDS_MAX = 10.0
_TRIES = 2
# This package implements the compare-and-swap of these; the contract suite races it.
_BUILT_IN = ("file://", "memory://")
_INSTEAD = (
    'use a server with conditional writes, or set cold.conditional_writes = "off" and run exactly one tierer'
)


def check_conditional_writes(store: ObjectStore) -> None:
    """Test the store's compare-and-swap with small objects, and delete them.

    Some S3-compatible servers accept ``If-Match`` and ``If-None-Match`` and ignore them. Others compare first and
    write later, so that several concurrent writers succeed. Two tierers would then overwrite each other's manifest
    without an error. So this test precedes the first write to a bucket; it runs once a bucket, as it takes some 60
    requests. A race with several winners refutes the server; a race with a single winner proves nothing.

    Raises
    ------
    ConfigError
        The server ignored a condition that was false, refused one that was true, or a race had several winners.
    ColdStorageError
    """
    if not store.conditional_writes:
        return
    probe = _Probe(store)
    try:
        probe.write_alone()
        if not store.url.startswith(_BUILT_IN):
            for _ in range(RACES):
                probe.write_in_races()
    except BaseException:
        with suppress(ColdStorageError):  # the sweep deletes those that stay
            store.delete(probe.keys)
        raise
    store.delete(probe.keys)


class ProbeOutcome:
    """The outcome of a test of a server, kept for the life of the process: each partition and pass needs it."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._refusal: str | None = None
        self._passed = False

    def check(self, probe: Callable[[], None]) -> None:
        """Run the test unless it has passed or failed before.

        Raises
        ------
        ConfigError
            The test fails or has failed. Other errors, such as an unreachable server, are not kept.
        """
        with self._lock:
            if self._refusal is not None:
                raise ConfigError(self._refusal)
            if self._passed:
                return
            try:
                probe()
            except ConfigError as error:
                self._refusal = str(error)
                raise
            self._passed = True


class _Probe:
    """Writes to objects of its own. An ``etag`` of None stands for an object that is not there."""

    def __init__(self, store: ObjectStore) -> None:
        self.keys: list[str] = []
        self._store = store

    def write_alone(self) -> None:
        """Write with conditions that are true and with some that are false."""
        try:
            key, first, second = self._write_twice()
        except ConfigError:
            # One answer may bear a wrong ETag, and the outcome is kept: a second object decides.
            key, first, second = self._write_twice()
        self._check_refused(key, None)
        if second != first:
            self._check_refused(key, first)

    def _write_twice(self) -> tuple[str, str, str]:
        """Create an object and replace it; return its key and both ETags."""
        key = self._new_key()
        first = self._check_accepted(key, b"first", None)
        return key, first, self._check_accepted(key, b"second", first)

    def write_in_races(self) -> None:
        """Let several writers create an object, and then replace it."""
        key = self._new_key()
        etag = self._race(key, None)
        if etag is not None:
            self._race(key, etag)

    def _new_key(self) -> str:
        # An access policy for one store's keys allows only names of this form.
        self.keys.append(f"{PROBE_PREFIX}{uuid4()}")
        return self.keys[-1]

    def _put(self, key: str, data: bytes, etag: str | None) -> str:
        return self._store.put(key, data, if_match=etag, if_none_match=etag is None)

    def _check_accepted(self, key: str, data: bytes, etag: str | None) -> str:
        """Write with a true condition; return the new ETag."""
        refusal: PreconditionFailed | None = None
        for _ in range(_TRIES):
            try:
                return self._put(key, data, etag)
            except PreconditionFailed as error:
                refusal = error
            # The SDK repeats a request whose answer was lost; the repetition fails on its own success.
            with suppress(ObjectNotFound):
                stored = self._store.get(key)
                if stored.data == data:
                    return stored.etag
        what = "If-Match with the ETag that it returned" if etag else "If-None-Match where there is no object"
        raise ConfigError(f"{self._store.url}: the server refuses {what}; {_INSTEAD}") from refusal

    def _check_refused(self, key: str, etag: str | None) -> None:
        """Write with a false condition."""
        try:
            self._put(key, b"third", etag)
        except PreconditionFailed:
            return
        raise ConfigError(
            f"{self._store.url}: the server ignores {_header(etag)}, so two writers would overwrite each other; {_INSTEAD}"
        )

    def _race(self, key: str, etag: str | None) -> str | None:
        """Let all racers write at the same time; return the winner's ETag, None if there is no winner."""
        start = Barrier(RACERS)
        won: list[tuple[bytes, str]] = []
        failed: list[Exception] = []

        def write(data: bytes) -> None:
            with suppress(BrokenBarrierError):
                start.wait(_START_SECONDS_MAX)
            try:
                won.append((data, self._put(key, data, etag)))
            except PreconditionFailed:
                pass
            except Exception as error:  # noqa: BLE001 - raised below, once all have ended
                # A throttled or lost request: not a winner, whatever its outcome.
                if not isinstance(error, ColdStorageError) or not error.retryable:
                    failed.append(error)

        # Each racer writes other bytes: an ETag may be their hash, and an old condition would become true again.
        written = [uuid4().bytes * (_RACER_BYTES // 16) for _ in range(RACERS)]
        # Not a pool: pools take no work while the interpreter ends, when the last records are flushed.
        racers = [Thread(target=write, args=(data,), name="tiered-probe") for data in written]
        started: list[Thread] = []
        try:
            for racer in racers:
                racer.start()
                started.append(racer)
        finally:
            if len(started) < len(racers):
                start.abort()
            for racer in started:
                racer.join()
        if failed:
            raise failed[0]
        if not won:
            return None
        if len(won) > 1 or not self._holds(key, won[0][0]):
            ended = f"{len(won)} succeeded" if len(won) > 1 else "one succeeded and another one is stored"
            raise ConfigError(
                f"{self._store.url}: of {RACERS} writes of one object at the same time, each with the same "
                f"{_header(etag)}, {ended}: the server compares and writes in two steps, so two writers would overwrite "
                f"each other; {_INSTEAD}"
            )
        return won[0][1]

    def _holds(self, key: str, data: bytes) -> bool:
        """Whether an object is what was written; it is read again before the answer is no."""
        for _ in range(_TRIES):
            with suppress(CorruptionError):  # two writes at once, mixed, or an answer changed on the way
                if self._store.get(key).data == data:
                    return True
        return False


def _header(etag: str | None) -> str:
    return "If-None-Match" if etag is None else "If-Match"
