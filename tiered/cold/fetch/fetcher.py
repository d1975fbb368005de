"""Fetching pieces of objects: from a cache, from another reader's request, or from the bucket, always verified.

A piece is looked for in memory, then among those under way, then in a copy of the object and in the cache on the
disk; what is left is fetched in as few
requests as its ranges allow. Every piece is verified wherever it came from (promise P4). What a cache gave and
fails is dropped and fetched again; what the bucket gave and fails is asked for again, and is a `CorruptionError`
once every answer failed.
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
from ...errors import ColdStorageError, CorruptionError, ObjectNotFound, TieredError, again
from ..object_store.protocol import ObjectStore
from ..object_store.ranges import Range, coalesce
from ..object_store.second_look import LOOKS, sound
from ..parquet.footer import FooterCache
from .counters import FetchCounters
from .disk_cache import DiskCache
from .hedge import Hedge
from .local_copies import LocalCopies
from .memory_cache import Ident, MemoryCache
from .plan import VerifiedRange, read_piece

_REMEMBERED_MAX = 1 << 16
_DECODERS_MAX = 4

_T = TypeVar("_T")
_Own = tuple[VerifiedRange, Future[memoryview]]


class Admission(enum.Enum):
    """What a cache does with what was fetched: an order of magnitude more is read by scans than is read again."""

    NARROW = "kept in memory and on the disk; the least recently used makes room"
    SCAN = "kept on the disk where a scan reads it again, in room that is free, and first to go"


@dataclass(slots=True)
class Reserved:
    """Memory that is set aside for one reader."""

    bytes: int = 0


class Fetcher:
    """One for each store that is open, shared by all its readers; safe among threads.

    Parameters
    ----------
    connect
        Returns the bucket.
    threads
        Fetches under way at a time, beside those that readers make themselves.
    memory_bytes
        For pieces kept.
    ahead_bytes
        For what is fetched ahead, by all readers together.
    disk
        None keeps nothing on the disk.
    copies
        Of whole objects; None where there can be none.

    Attributes
    ----------
    decoders
        Threads that decode what was fetched beside the reader's own, a few at most: what they hold is not in the
        budget.
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
        self._flights: dict[Ident, Future[memoryview]] = {}
        # Pieces that scans read once.
        self._scanned: OrderedDict[Ident, None] = OrderedDict()
        self._pool = WorkerPool(threads, "tiered-fetch")
        self.decoders = WorkerPool(min(usable_cpus() - 1, _DECODERS_MAX), "tiered-decode")

    def where(self, key: str) -> str:
        """Return the URL of an object, for messages."""
        return f"{self._connect().url.rstrip('/')}/{key}"

    def fetch(
        self, key: str, size: int, pieces: Sequence[VerifiedRange], *, gap_bytes: int, admission: Admission
    ) -> list[memoryview]:
        """Return verified pieces of an object, in their order.

        Parameters
        ----------
        size
            Of the object.
        gap_bytes
            Pieces that are so far apart at most are fetched by one request.

        Raises
        ------
        CorruptionError, ObjectNotFound, ColdStorageError
        """
        found: dict[Ident, memoryview] = {}
        mine: dict[Ident, _Own] = {}
        others: dict[Ident, tuple[VerifiedRange, Future[memoryview]]] = {}
        try:
            # Within the try: Ctrl-C between two pieces must not leave a flight that others wait for, for ever.
            for piece in pieces:
                ident = (key, piece.start, piece.length)
                if ident in mine:
                    continue
                held = self._held(ident, piece)
                with self._lock:
                    # Looked at twice: it may have landed between a first look and the lock.
                    if held is None and self._memory.get(ident) is not None and ident not in self._flights:
                        held = self._held(ident, piece)
                    if held is not None:
                        found[ident] = held
                    elif ident in self._flights:
                        others[ident] = piece, self._flights[ident]
                    else:
                        own: _Own = piece, Future()
                        # No call between the two, hence no Ctrl-C.
                        mine[ident], self._flights[ident] = own, own[1]
            self._land(key, size, mine, found, gap_bytes, admission)
        except BaseException as error:
            self._fail(mine, error)
            raise
        # Only after one's own have landed: two readers that wait for each other would wait for ever.
        for ident, (piece, flight) in others.items():
            found[ident] = self._follow(key, size, piece, flight, gap_bytes, admission)
        return [found[key, piece.start, piece.length] for piece in pieces]

    def submit(self, work: Callable[[], _T]) -> Future[_T] | None:
        """Do some fetching on another thread; None where the interpreter or the store is ending."""
        return self._pool.submit(work)

    def reserve(self, held: Reserved, size: int) -> bool:
        """Set memory aside for what is fetched ahead; False where there is none left."""
        with self._lock:
            if size > self._ahead_bytes_left:
                return False
            # No call between the two, hence no Ctrl-C.
            self._ahead_bytes_left -= size
            held.bytes += size
            return True

    def release(self, held: Reserved, size: int) -> None:
        """Give back what `reserve` set aside."""
        with self._lock:
            held.bytes -= size
            self._ahead_bytes_left += size

    def drain(self) -> None:
        """Wait until what was fetched is on the disk."""
        if self._disk is not None:
            self._disk.drain()

    def close(self, *, wait: bool = True) -> None:
        """End the threads and let go of what is held in memory.

        Parameters
        ----------
        wait
            For the requests that are under way.
        """
        self._pool.close(wait=wait)
        self.decoders.close(wait=wait)
        if self._disk is not None:
            self._disk.close()
        self._memory.clear()

    def _held(self, ident: Ident, piece: VerifiedRange) -> memoryview | None:
        """Return a piece from memory."""
        data = self._memory.get(ident)
        if data is None:
            return None
        if piece.damage(data) is not None:
            self._memory.drop(ident)
            self.counters.add(damaged=1)
            return None
        self.counters.add(memory_hits=1, hit_bytes=piece.length)
        return memoryview(data)

    def _land(
        self,
        key: str,
        size: int,
        mine: dict[Ident, _Own],
        found: dict[Ident, memoryview],
        gap_bytes: int,
        admission: Admission,
    ) -> None:
        """Bring one's own pieces in, from the disk or from the bucket."""
        missing: dict[Ident, _Own] = {}
        for ident, own in mine.items():
            piece, flight = own
            data = self._in_copy(key, piece) or self._on_disk(ident, piece, admission)
            if data is None:
                missing[ident] = own
                continue
            if admission is Admission.NARROW:
                self._memory.put(ident, data)
            found[ident] = self._landed(ident, flight, data)
        if not missing:
            return
        pieces = [piece for piece, _ in missing.values()]
        self.counters.add(misses=len(pieces), miss_bytes=sum(piece.length for piece in pieces))
        ranges = coalesce([piece.range for piece in pieces], gap_bytes)
        answers = [memoryview(part) for part in self._get(key, size, ranges, pieces[0], admission)]
        if self._copies is not None:
            self._copies.fetched(key)
        spoilt: dict[Ident, _Own] = {}
        for ident, own in missing.items():
            piece, flight = own
            place = max(i for i, (start, _) in enumerate(ranges) if start <= piece.start)
            at = piece.start - ranges[place][0]
            data = answers[place][at : at + piece.length]
            if piece.damage(data) is not None:
                # At the end: others may wait for the sound pieces beside it.
                spoilt[ident] = own
                continue
            self._admit(ident, data, admission)
            found[ident] = self._landed(ident, flight, data)
        for ident, (piece, flight) in spoilt.items():
            self.counters.add(requests=1, request_bytes=piece.length)
            # Alone, and once more after that: the answer may have been changed on its way.
            data = memoryview(read_piece(self._connect(), key, piece, looks=LOOKS - 1))
            self._admit(ident, data, admission)
            found[ident] = self._landed(ident, flight, data)

    def _in_copy(self, key: str, piece: VerifiedRange) -> memoryview | None:
        data = None if self._copies is None else self._copies.read(key, piece.start, piece.length)
        if data is None or self._copies is None:
            return None
        if piece.damage(data) is not None:
            with suppress(OSError, TieredError):
                self._copies.drop(key)
            self.counters.add(damaged=1)
            return None
        self.counters.add(disk_hits=1, hit_bytes=piece.length)
        return memoryview(data)

    def _on_disk(self, ident: Ident, piece: VerifiedRange, admission: Admission) -> memoryview | None:
        if self._disk is None:
            return None
        data = self._disk.get(ident, use=admission is Admission.NARROW)
        if data is None:
            return None
        if piece.damage(data) is not None:
            self._disk.drop(ident)
            self.counters.add(damaged=1)
            return None
        self.counters.add(disk_hits=1, hit_bytes=piece.length)
        return memoryview(data)

    def _admit(self, ident: Ident, data: memoryview, admission: Admission) -> None:
        if admission is Admission.NARROW:
            self._memory.put(ident, data)
            if self._disk is not None:
                self._disk.put(ident, data, spare=False)
            return
        if self._disk is None:
            return
        with self._lock:
            known = ident in self._scanned
            self._scanned[ident] = None
            if len(self._scanned) > _REMEMBERED_MAX:
                self._scanned.popitem(last=False)
        if known:
            self._disk.put(ident, data, spare=True)

    def _landed(self, ident: Ident, flight: Future[memoryview], data: memoryview) -> memoryview:
        flight.set_result(data)
        self._end(ident, flight)
        return data

    def _fail(self, mine: dict[Ident, _Own], error: BaseException) -> None:
        for ident, (_, flight) in mine.items():
            if not flight.done():
                flight.set_exception(error)
            self._end(ident, flight)

    def _end(self, ident: Ident, flight: Future[memoryview]) -> None:
        with self._lock:
            # Where it has landed, another reader may have begun one since.
            if self._flights.get(ident) is flight:
                del self._flights[ident]

    def _follow(
        self,
        key: str,
        size: int,
        piece: VerifiedRange,
        flight: Future[memoryview],
        gap_bytes: int,
        admission: Admission,
    ) -> memoryview:
        """Wait for what another reader fetches."""
        try:
            data = flight.result()
        except TieredError as error:
            raise again(error) from None
        except BaseException as error:
            if flight.done() and flight.exception() is error:
                # The other reader was interrupted; that is no answer to this one.
                return self.fetch(key, size, [piece], gap_bytes=gap_bytes, admission=admission)[0]
            raise
        self.counters.add(shared=1)
        if piece.damage(data) is not None:  # another manifest has another checksum for the same range
            raise CorruptionError(
                piece.reason, where=self.where(key), position=piece.start, offsets=piece.offsets
            )
        return data

    def _get(
        self, key: str, size: int, ranges: list[Range], first: VerifiedRange, admission: Admission
    ) -> list[bytes]:
        store, bytes_wanted = self._connect(), sum(length for _, length in ranges)

        def ask() -> list[bytes]:
            self.counters.add(requests=len(ranges), request_bytes=bytes_wanted)
            return store.get_ranges(key, ranges) if len(ranges) > 1 else [store.get_range(key, *ranges[0])]

        # What a scan waits for was fetched ahead, and a disk gains nothing from being asked twice.
        hedged = admission is Admission.NARROW and not store.url.startswith(("file:", "memory:"))
        try:
            return self._hedge.ask(ask, bytes_wanted) if hedged else ask()
        except ObjectNotFound:
            raise
        except ColdStorageError:
            self._check_size(store, key, size, first)
            raise

    def _check_size(self, store: ObjectStore, key: str, size: int, first: VerifiedRange) -> None:
        """Raise `CorruptionError` where a read failed because the object was cut: waiting does not help then."""

        def look() -> None:
            found = store.stat(key).size
            if found != size:
                raise CorruptionError(
                    f"object has {found} bytes, the manifest says {size}",
                    where=self.where(key),
                    position=min(found, size),
                    offsets=first.offsets,
                )

        with suppress(ColdStorageError):
            sound(look)
