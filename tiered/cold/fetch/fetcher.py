"""Fetching of verified ranges: from a cache, from another reader's request, or from the bucket.

The fetcher looks for a range in memory, among the fetches under way, in a local copy of the object, and in the disk
cache. It fetches the missing ranges in as few requests as their distances allow. It verifies every range, wherever it
comes from (promise P4). A cached range that fails is dropped and fetched again. A fetched range that fails is read again,
and raises `CorruptionError` once every read has failed.
"""

from __future__ import annotations

import enum
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

from ...base.worker_pool import WorkerPool, usable_cpus
from ...errors import ColdStorageError, CorruptionError, ObjectNotFound, TieredError, copy_error
from ..object_store.protocol import ObjectStore
from ..object_store.ranges import Span, coalesce
from ..object_store.rereads import READS_MAX, reread_on_damage
from ..parquet.footer import FooterCache
from .counters import FetchCounters
from .disk_cache import DiskCache
from .hedge import Hedge
from .local_copies import LocalCopies
from .memory_cache import MemoryCache, RangeKey
from .verified_range import VerifiedRange, read_range

_SCANNED_MAX = 1 << 16
_DECODERS_MAX = 4

_T = TypeVar("_T")
_Flight = tuple[VerifiedRange, Future[memoryview]]


class Admission(enum.Enum):
    """How fetched ranges enter the caches: scans read far more than is ever read again."""

    NARROW = "cached in memory and on the disk; evicts the least recently used"
    SCAN = "cached on the disk when a second scan reads it, in free room only, and evicted first"


@dataclass(slots=True)
class Reservation:
    """Memory that is reserved for one reader."""

    bytes: int = 0


class Fetcher:
    """The fetcher of an open store, shared by all its readers; thread-safe.

    Parameters
    ----------
    connect
        Returns the bucket.
    threads
        Fetches at a time, beside those on the readers' own threads.
    memory_bytes
        Budget of the memory cache.
    ahead_bytes
        Budget for fetching ahead, for all readers together.
    disk
        The disk cache; None for no caching on the disk.
    copies
        Local copies of objects; None if there are none.

    Attributes
    ----------
    decoders
        Threads that decode fetched ranges beside the readers' own; a few at most, since no budget counts their memory.
    """

    def __init__(
        self,
        connect: Callable[[], ObjectStore],
        *,
        threads: int = 1,
        memory_bytes: int = 0,
        ahead_bytes: int = 0,
        disk: DiskCache | None = None,
        copies: LocalCopies | None = None,
        footers: FooterCache | None = None,
        counters: FetchCounters | None = None,
    ) -> None:
        self._connect = connect
        self._memory = MemoryCache(memory_bytes)
        self._disk = disk
        self._copies = copies
        self.footers = footers or FooterCache()
        self.counters = counters or FetchCounters()
        self._hedge: Hedge[list[bytes]] = Hedge(self.counters)
        self._ahead_bytes_left = ahead_bytes
        self._lock = threading.Lock()
        self._flights: dict[RangeKey, Future[memoryview]] = {}
        # Ranges that scans have read once.
        self._scanned: OrderedDict[RangeKey, None] = OrderedDict()
        self._pool = WorkerPool(threads, "tiered-fetch")
        self.decoders = WorkerPool(min(usable_cpus() - 1, _DECODERS_MAX), "tiered-decode")

    def where(self, key: str) -> str:
        """Return the URL of an object, for messages."""
        return f"{self._connect().url.rstrip('/')}/{key}"

    def fetch(
        self, key: str, size: int, ranges: Sequence[VerifiedRange], *, gap_bytes: int, admission: Admission
    ) -> list[memoryview]:
        """Return verified ranges of an object, in their order.

        Parameters
        ----------
        size
            Size of the object in bytes.
        gap_bytes
            Ranges at most this far apart are fetched by one request.

        Raises
        ------
        CorruptionError, ObjectNotFound, ColdStorageError
        """
        data: dict[RangeKey, memoryview] = {}
        own: dict[RangeKey, _Flight] = {}
        other_flights: dict[RangeKey, _Flight] = {}
        try:
            # Within the try: Ctrl-C between two ranges must not leave a flight for which others wait for ever.
            for byte_range in ranges:
                ident = (key, byte_range.start, byte_range.length)
                if ident in own:
                    continue
                cached = self._from_memory(ident, byte_range)
                with self._lock:
                    # Checked again under the lock: the range may have arrived since.
                    if cached is None and self._memory.get(ident) is not None and ident not in self._flights:
                        cached = self._from_memory(ident, byte_range)
                    if cached is not None:
                        data[ident] = cached
                    elif ident in self._flights:
                        other_flights[ident] = byte_range, self._flights[ident]
                    else:
                        flight: _Flight = byte_range, Future()
                        # No call between the two, hence no Ctrl-C.
                        own[ident], self._flights[ident] = flight, flight[1]
            self._fetch_own(key, size, own, data, gap_bytes, admission)
        except BaseException as error:
            self._fail(own, error)
            raise
        # Only after its own flights have ended: two readers could otherwise wait for each other for ever.
        for ident, (byte_range, future) in other_flights.items():
            data[ident] = self._await_other(key, size, byte_range, future, gap_bytes, admission)
        return [data[key, byte_range.start, byte_range.length] for byte_range in ranges]

    def submit(self, work: Callable[[], _T]) -> Future[_T] | None:
        """Run `work` on another thread; None if the interpreter or the store is ending."""
        return self._pool.submit(work)

    def reserve(self, reservation: Reservation, size: int) -> bool:
        """Reserve memory for fetching ahead; False if the budget is used up."""
        with self._lock:
            if size > self._ahead_bytes_left:
                return False
            # No call between the two, hence no Ctrl-C.
            self._ahead_bytes_left -= size
            reservation.bytes += size
            return True

    def release(self, reservation: Reservation, size: int) -> None:
        """Give reserved memory back."""
        with self._lock:
            reservation.bytes -= size
            self._ahead_bytes_left += size

    def drain(self) -> None:
        """Wait until fetched ranges are in the disk cache."""
        if self._disk is not None:
            self._disk.drain()

    def forget(self) -> None:
        """Remove everything from the memory cache."""
        self._memory.clear()

    def clear(self) -> None:
        """Remove everything from the caches, on the disk too.

        Raises
        ------
        OSError
        """
        self._memory.clear()
        if self._disk is not None:
            self._disk.clear()

    def close(self, *, wait: bool = True) -> None:
        """End the threads and clear the memory cache.

        Parameters
        ----------
        wait
            Whether to wait for the requests that are under way.
        """
        self._pool.close(wait=wait)
        self.decoders.close(wait=wait)
        if self._disk is not None:
            self._disk.close()
        self._memory.clear()

    def _from_memory(self, ident: RangeKey, byte_range: VerifiedRange) -> memoryview | None:
        data = self._memory.get(ident)
        if data is None:
            return None
        if byte_range.damage(data) is not None:
            self._memory.drop(ident)
            self.counters.add(damaged=1)
            return None
        self.counters.add(memory_hits=1, hit_bytes=byte_range.length)
        return memoryview(data)

    def _fetch_own(
        self,
        key: str,
        size: int,
        own: dict[RangeKey, _Flight],
        data: dict[RangeKey, memoryview],
        gap_bytes: int,
        admission: Admission,
    ) -> None:
        """Get the ranges of this reader's own flights, from the disk or from the bucket."""
        missing: dict[RangeKey, _Flight] = {}
        for ident, (byte_range, future) in own.items():
            cached = self._from_copy(key, byte_range) or self._from_disk(ident, byte_range, admission)
            if cached is None:
                missing[ident] = byte_range, future
                continue
            if admission is Admission.NARROW:
                self._memory.put(ident, cached)
            data[ident] = self._deliver(ident, future, cached)
        if not missing:
            return
        ranges = [byte_range for byte_range, _ in missing.values()]
        self.counters.add(misses=len(ranges), miss_bytes=sum(byte_range.length for byte_range in ranges))
        spans = coalesce([byte_range.span for byte_range in ranges], gap_bytes)
        answers = [memoryview(answer) for answer in self._get(key, size, spans, ranges[0], admission)]
        if self._copies is not None:
            self._copies.count_fetch(key)
        damaged: dict[RangeKey, _Flight] = {}
        for ident, (byte_range, future) in missing.items():
            index = max(i for i, (start, _) in enumerate(spans) if start <= byte_range.start)
            at = byte_range.start - spans[index][0]
            fetched = answers[index][at : at + byte_range.length]
            if byte_range.damage(fetched) is not None:
                # Read again at the end: others may wait for the sound ranges.
                damaged[ident] = byte_range, future
                continue
            self._admit(ident, fetched, admission)
            data[ident] = self._deliver(ident, future, fetched)
        for ident, (byte_range, future) in damaged.items():
            self.counters.add(requests=1, request_bytes=byte_range.length)
            # Each in a request of its own: the answer may have been damaged on its way.
            fetched = memoryview(read_range(self._connect(), key, byte_range, reads=READS_MAX - 1))
            self._admit(ident, fetched, admission)
            data[ident] = self._deliver(ident, future, fetched)

    def _from_copy(self, key: str, byte_range: VerifiedRange) -> memoryview | None:
        data = None if self._copies is None else self._copies.read(key, byte_range.start, byte_range.length)
        if data is None or self._copies is None:
            return None
        if byte_range.damage(data) is not None:
            with suppress(OSError, TieredError):
                self._copies.drop(key)
            self.counters.add(damaged=1)
            return None
        self.counters.add(disk_hits=1, hit_bytes=byte_range.length)
        return memoryview(data)

    def _from_disk(
        self, ident: RangeKey, byte_range: VerifiedRange, admission: Admission
    ) -> memoryview | None:
        if self._disk is None:
            return None
        data = self._disk.get(ident, use=admission is Admission.NARROW)
        if data is None:
            return None
        if byte_range.damage(data) is not None:
            self._disk.drop(ident)
            self.counters.add(damaged=1)
            return None
        self.counters.add(disk_hits=1, hit_bytes=byte_range.length)
        return memoryview(data)

    def _admit(self, ident: RangeKey, data: memoryview, admission: Admission) -> None:
        if admission is Admission.NARROW:
            self._memory.put(ident, data)
            if self._disk is not None:
                self._disk.put(ident, data, spare=False)
            return
        if self._disk is None:
            return
        with self._lock:
            is_second_scan = ident in self._scanned
            self._scanned[ident] = None
            if len(self._scanned) > _SCANNED_MAX:
                self._scanned.popitem(last=False)
        if is_second_scan:
            self._disk.put(ident, data, spare=True)

    def _deliver(self, ident: RangeKey, future: Future[memoryview], data: memoryview) -> memoryview:
        future.set_result(data)
        self._remove_flight(ident, future)
        return data

    def _fail(self, own: dict[RangeKey, _Flight], error: BaseException) -> None:
        for ident, (_, future) in own.items():
            if not future.done():
                future.set_exception(error)
            self._remove_flight(ident, future)

    def _remove_flight(self, ident: RangeKey, future: Future[memoryview]) -> None:
        with self._lock:
            # After its end another reader may have begun a new one.
            if self._flights.get(ident) is future:
                del self._flights[ident]

    def _await_other(
        self,
        key: str,
        size: int,
        byte_range: VerifiedRange,
        future: Future[memoryview],
        gap_bytes: int,
        admission: Admission,
    ) -> memoryview:
        """Wait for a range that another reader fetches."""
        try:
            data = future.result()
        except TieredError as error:
            raise copy_error(error) from None
        except BaseException as error:
            if future.done() and future.exception() is error:
                # The other reader was interrupted, and this one was not: fetch the range here.
                return self.fetch(key, size, [byte_range], gap_bytes=gap_bytes, admission=admission)[0]
            raise
        self.counters.add(shared=1)
        if byte_range.damage(data) is not None:  # another manifest has another checksum for the same range
            raise CorruptionError(
                byte_range.reason,
                where=self.where(key),
                position=byte_range.start,
                offsets=byte_range.offsets,
            )
        return data

    def _get(
        self, key: str, size: int, spans: list[Span], first: VerifiedRange, admission: Admission
    ) -> list[bytes]:
        store, bytes_wanted = self._connect(), sum(length for _, length in spans)

        def request() -> list[bytes]:
            self.counters.add(requests=len(spans), request_bytes=bytes_wanted)
            return store.get_ranges(key, spans) if len(spans) > 1 else [store.get_range(key, *spans[0])]

        # Scans fetch ahead and need no hedge; a disk answers a second request no faster.
        hedged = admission is Admission.NARROW and not store.url.startswith(("file:", "memory:"))
        try:
            return self._hedge.call(request, bytes_wanted) if hedged else request()
        except ObjectNotFound:
            raise
        except ColdStorageError:
            self._check_size(store, key, size, first)
            raise

    def _check_size(self, store: ObjectStore, key: str, size: int, first: VerifiedRange) -> None:
        """Raise `CorruptionError` if a read failed because the object was truncated: a retry cannot help then."""

        def check() -> None:
            actual = store.stat(key).size
            if actual != size:
                raise CorruptionError(
                    f"object has {actual} bytes, the manifest says {size}",
                    where=self.where(key),
                    position=min(actual, size),
                    offsets=first.offsets,
                )

        with suppress(ColdStorageError):
            reread_on_damage(check)
