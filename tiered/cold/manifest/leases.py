"""Leases: a reader that holds a snapshot for long says so in the bucket, and the sweep leaves it what it names.

A lease is an object ``leases/<uuid>.json``: for how many ``seconds`` it holds from when it was last written, when it was
taken, and by whom. A reader takes it, *then* takes its snapshot, renews it in time, and releases it. All times are
the server's: it holds until so long after its modification time, and covers what became an orphan since
``taken_seconds``, which is the modification time of its first writing. The sweep reads the leases after the
clock that it goes by:

- *Taken before that moment*: the sweep lists it, since listings are consistent. What the snapshot names was named then or
  later, so it became an orphan no earlier than the lease was taken, and stays.
- *Taken after it*: the snapshot is younger than the clock of the sweep, so what it names is no orphan that was due.
- *The reader dies*: the lease ends by itself. *It is late*: from its own monotonic clock, started before each request,
  it knows that the lease may have ended, and `renew` says so instead of bringing it back; objects may be gone.
- *Renewed while the sweep looks*: a key is listed before it is read, so an older time meets the newer content at worst.
- *A lease that does not decode* counts as one of the longest kind, of unknown beginning: nothing is deleted until it
  must have ended. One that cannot be read ends the sweep: nothing is known (promise P10).

A reader without permission to write takes none, and has the grace alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from uuid import UUID, uuid4

from ...errors import ColdStorageError, ConfigError, CorruptionError, ObjectNotFound, UnsupportedFormat
from ...format.document import decode_document, encode_document
from ..object_store.protocol import PROBE_PREFIX, ObjectStore
from .keys import LEASES_PREFIX

LEASE_SECONDS_MAX = 7 * 24 * 3600

# Modification times are cut to seconds.
_CUT_SECONDS = 1.0
# It goes on while this machine is suspended, as the server's does; `time.monotonic` of Linux stands still.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def _awake_or_not() -> float:
    return time.clock_gettime(_CLOCK)


class Lease:
    """A lease that this process holds. Not to be shared by threads.

    Attributes
    ----------
    taken_seconds
        When it was taken (Unix, the server's clock).
    """

    def __init__(
        self, store: ObjectStore, key: str, seconds: float, holder: str, monotonic: Callable[[], float]
    ) -> None:
        self._store = store
        self._key = key
        self._seconds = seconds
        self._holder = holder
        self._monotonic = monotonic
        self._begun = monotonic()
        self.taken_seconds: float | None = None

    @classmethod
    def take(
        cls,
        store: ObjectStore,
        *,
        seconds: float = 3600.0,
        holder: str = "",
        monotonic: Callable[[], float] = _awake_or_not,
    ) -> Lease:
        """Take a lease; only a snapshot that is taken after it is covered by it.

        Parameters
        ----------
        seconds
            For how long it holds unless it is renewed, at most seven days.
        holder
            For people: host, process, job.

        Raises
        ------
        ConfigError
            It would hold for longer than is allowed, or not at all.
        ColdStorageError
            It was not taken, for want of permission perhaps.
        """
        if not _CUT_SECONDS < seconds <= LEASE_SECONDS_MAX:
            raise ConfigError(f"a lease holds for 2 seconds to 7 days, not for {seconds} seconds")
        lease = cls(store, f"{LEASES_PREFIX}{uuid4()}.json", seconds, holder, monotonic)
        lease._write()
        lease.taken_seconds = store.stat(lease._key).modified_seconds
        return lease

    @property
    def left_seconds(self) -> float:
        """For how long it still holds at least; not above zero once it may have ended."""
        return self._begun + self._seconds - _CUT_SECONDS - self._monotonic()

    def renew(self) -> None:
        """Let it hold for as long again, from now.

        Raises
        ------
        ColdStorageError
            Retryable: it was not renewed, and holds for `left_seconds`. Else it may have ended: objects of the
            snapshot may be gone.
        """
        if self.left_seconds <= 0:
            raise ColdStorageError(
                f"the lease {self._key} may have ended {-self.left_seconds:.0f} s ago: take a new one and a new snapshot"
            )
        self._write()

    def release(self) -> None:
        """End it. What it covered goes once the grace has passed.

        Raises
        ------
        ColdStorageError
            It ends by itself.
        """
        self._begun = float("-inf")
        self._store.delete([self._key])

    def _write(self) -> None:
        begun = self._monotonic()
        about = {"seconds": self._seconds, "taken_seconds": self.taken_seconds, "holder": self._holder}
        self._store.put(self._key, encode_document(about))
        self._begun = begun


@dataclass(frozen=True, slots=True)
class _Found:
    taken_seconds: float
    seconds: float


def is_lease(key: str) -> bool:
    """Whether a key is that of a lease; a topic may be called like the folder, and has folders of its own in it."""
    name = key.removeprefix(LEASES_PREFIX).removesuffix(".json")
    try:
        return f"{LEASES_PREFIX}{UUID(name)}.json" == key
    except ValueError:
        return False


def oldest_lease(store: ObjectStore, now_seconds: float) -> float | None:
    """Return when the oldest lease was taken that holds at `now_seconds`; None where none does.

    Parameters
    ----------
    now_seconds
        The server's clock (Unix), looked at before.

    Raises
    ------
    ColdStorageError
        Which leases there are is not known.
    """
    taken = []
    for info in store.list(LEASES_PREFIX):
        if not is_lease(info.key) or now_seconds - info.modified_seconds > LEASE_SECONDS_MAX:
            continue
        try:
            found = _decoded(store.get(info.key).data, info.key, info.modified_seconds)
        except ObjectNotFound:
            continue  # released since
        if now_seconds - info.modified_seconds <= found.seconds:
            taken.append(found.taken_seconds)
    return min(taken, default=None)


def _decoded(data: bytes, where: str, modified_seconds: float) -> _Found:
    try:
        values = decode_document(data, where=where)
        seconds, taken = float(values["seconds"]), values["taken_seconds"]
        if not 0 < seconds <= LEASE_SECONDS_MAX:
            raise ValueError(seconds)
        return _Found(modified_seconds if taken is None else float(taken), seconds)
    except (CorruptionError, UnsupportedFormat, KeyError, TypeError, ValueError):
        return _Found(0.0, LEASE_SECONDS_MAX)


def server_seconds(store: ObjectStore) -> float:
    """Return the server's clock, by the modification time of an object that is written for it."""
    key = f"{PROBE_PREFIX}{uuid4()}"  # of its own: another one may ask at the same time
    store.put(key, b"what time is it?")
    try:
        return store.stat(key).modified_seconds
    finally:
        store.delete([key])
