"""Leases: objects by which a reader of a long snapshot keeps the sweep from deleting its objects.

A lease is an object ``leases/<uuid>.json``: how many ``seconds`` it lasts from its last write, when it was taken, and the
holder. A reader takes a lease, *then* takes its snapshot, renews the lease in time, and releases it. All times are the
server's. A lease lasts ``seconds`` from its modification time. It protects objects that became orphans since
``taken_seconds``, the modification time of its first write. The sweep reads the leases after it has read its clock:

- *Taken before that moment*: the sweep lists it, since listings are consistent. The manifest named the snapshot's objects
  at that time or later, so they became orphans after the lease was taken, and stay.
- *Taken after it*: the snapshot is younger than the sweep's clock, so none of its objects is a due orphan.
- *The reader dies*: the lease ends by itself. *The reader is late*: its own monotonic clock, started before each request,
  shows that the lease may have ended. Then `renew` raises and does not revive it; objects may be gone.
- *Renewed during the sweep*: the sweep lists a key before it reads it, so at worst it combines an older time with newer
  content.
- *A lease that does not decode* counts as one of the longest kind with an unknown beginning: nothing is deleted until it
  must have ended. A lease that cannot be read ends the sweep (promise P10).

A reader without permission to write takes no lease; only the grace protects its snapshot.
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

# Servers truncate modification times to seconds.
_CUT_SECONDS = 1.0
# Like the server's clock, this one runs while the machine is suspended; `time.monotonic` stops on Linux.
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boot_seconds() -> float:
    """Return seconds of a clock that also runs while the machine is suspended."""
    return time.clock_gettime(_CLOCK)


class Lease:
    """A lease that this process holds; not thread-safe.

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
        monotonic: Callable[[], float] = boot_seconds,
    ) -> Lease:
        """Take a lease; it protects only snapshots that are taken after it.

        Parameters
        ----------
        seconds
            How long it lasts unless it is renewed, at most seven days.
        holder
            Host, process or job, as information for people.

        Raises
        ------
        ConfigError
            `seconds` is out of range.
        ColdStorageError
            It was not taken, for example without permission to write.
        """
        if not _CUT_SECONDS < seconds <= LEASE_SECONDS_MAX:
            raise ConfigError(f"a lease holds for 2 seconds to 7 days, not for {seconds} seconds")
        lease = cls(store, f"{LEASES_PREFIX}{uuid4()}.json", seconds, holder, monotonic)
        lease._write()
        lease.taken_seconds = store.stat(lease._key).modified_seconds
        return lease

    @property
    def left_seconds(self) -> float:
        """How long it lasts at least from now; zero or less once it may have ended."""
        return self._begun + self._seconds - _CUT_SECONDS - self._monotonic()

    def renew(self) -> None:
        """Extend it: it lasts its full time again from now.

        Raises
        ------
        ColdStorageError
            Retryable: it was not renewed and lasts for `left_seconds`. Otherwise it may have ended, and objects of
            the snapshot may be gone.
        """
        if self.left_seconds <= 0:
            raise ColdStorageError(
                f"the lease {self._key} may have ended {-self.left_seconds:.0f} s ago: take a new one and a new snapshot"
            )
        self._write()

    def release(self) -> None:
        """End it. The objects that it protected go once their grace has passed.

        Raises
        ------
        ColdStorageError
            The request failed; the lease ends by itself.
        """
        self._begun = float("-inf")
        self._store.delete([self._key])

    def _write(self) -> None:
        begun = self._monotonic()
        about = {"seconds": self._seconds, "taken_seconds": self.taken_seconds, "holder": self._holder}
        self._store.put(self._key, encode_document(about))
        self._begun = begun


@dataclass(frozen=True, slots=True)
class _LeaseTerms:
    taken_seconds: float
    seconds: float


def is_lease(key: str) -> bool:
    """Whether a key is that of a lease; a topic named ``leases`` has folders of its own under the same prefix."""
    name = key.removeprefix(LEASES_PREFIX).removesuffix(".json")
    try:
        return f"{LEASES_PREFIX}{UUID(name)}.json" == key
    except ValueError:
        return False


def oldest_lease(store: ObjectStore, now_seconds: float) -> float | None:
    """Return when the oldest lease was taken that is valid at `now_seconds`; None if there is none.

    Parameters
    ----------
    now_seconds
        The server's clock (Unix), read before this call.

    Raises
    ------
    ColdStorageError
        The leases cannot be listed or read.
    """
    times_seconds = []
    for info in store.list(LEASES_PREFIX):
        if not is_lease(info.key) or now_seconds - info.modified_seconds > LEASE_SECONDS_MAX:
            continue
        try:
            terms = _decode(store.get(info.key).data, info.key, info.modified_seconds)
        except ObjectNotFound:
            continue  # released since
        if now_seconds - info.modified_seconds <= terms.seconds:
            times_seconds.append(terms.taken_seconds)
    return min(times_seconds, default=None)


def _decode(data: bytes, where: str, modified_seconds: float) -> _LeaseTerms:
    try:
        values = decode_document(data, where=where)
        seconds, taken = float(values["seconds"]), values["taken_seconds"]
        if not 0 < seconds <= LEASE_SECONDS_MAX:
            raise ValueError(seconds)
        return _LeaseTerms(modified_seconds if taken is None else float(taken), seconds)
    except (CorruptionError, UnsupportedFormat, KeyError, TypeError, ValueError):
        return _LeaseTerms(0.0, LEASE_SECONDS_MAX)


def server_seconds(store: ObjectStore) -> float:
    """Return the server's clock: the modification time of an object that is written for this purpose and deleted."""
    key = f"{PROBE_PREFIX}{uuid4()}"  # unique: other processes may do the same at this time
    store.put(key, b"what time is it?")
    try:
        return store.stat(key).modified_seconds
    finally:
        store.delete([key])
