"""Fetching pieces of objects: from a cache, from another reader's request, or from the bucket, always verified.

A piece is looked for in memory, then among those under way, then on the disk; what is left is fetched in as few
requests as its ranges allow. Every piece is verified wherever it came from (promise P4). What a cache gave and
fails is dropped and fetched again; what the bucket gave and fails is a `CorruptionError`.
"""

from __future__ import annotations

import enum
import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from ..errors import ColdStorageError, CorruptionError, ObjectNotFound, TieredError, again
from .cache_disk import DiskCache
from .cache_memory import Ident, MemoryCache
from .fetch_counters import FetchCounters
from .fetch_hedge import Hedge
from .fetch_plan import Piece
from .object_store import ObjectStore
from .parquet_footer import FooterCache
from .ranges import Range, coalesce

_REMEMBERED_MAX = 1 << 16

_T = TypeVar("_T")


class Admission(enum.Enum):
    """What a cache does with what was fetched: an order of magnitude more is read by scans than is read again."""

    NARROW = "kept in memory and on the disk; the least recently used makes room"
    SCAN = "kept on the disk where a scan reads it again, in room that is free, and first to go"


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
    """

    def __init__(
        self,
        connect: Callable[[], ObjectStore],
        *,
        threads: int = 1,
        memory_bytes: int = 0,
        ahead_bytes: int = 0,
        disk: DiskCache | None = None,
        footers: FooterCache | None = None,
        counters: FetchCounters | None = None,
    ) -> None:
        self._connect = connect
        self._threads = threads
        self._memory = MemoryCache(memory_bytes)
        self._disk = disk
        self.footers = footers or FooterCache()
        self.counters = counters or FetchCounters()
        self._hedge: Hedge[list[bytes]] = Hedge(self.counters)
        self._ahead_bytes_left = ahead_bytes
        self._lock = threading.Lock()
        self._flights: dict[Ident, Future[memoryview]] = {}
        # Pieces that scans read once.
        self._scanned: OrderedDict[Ident, None] = OrderedDict()
        self._pool: ThreadPoolExecutor | None = None
        self._closed = False

    def where(self, key: str) -> str:
        """Return the URL of an object, for messages."""
        return f"{self._connect().url.rstrip('/')}/{key}"

    def fetch(
        self, key: str, size: int, pieces: Sequence[Piece], *, gap_bytes: int, admission: Admission
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
        mine: dict[Ident, Piece] = {}
        others: dict[Ident, tuple[Piece, Future[memoryview]]] = {}
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
                        self._flights[ident] = Future()
                        mine[ident] = piece
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
        with self._lock:
            if self._closed:
                return None
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="tiered-fetch")
            try:
                return self._pool.submit(work)
            except RuntimeError:
                return None

    def reserve(self, size: int) -> bool:
        """Set memory aside for what is fetched ahead; False where there is none left."""
        with self._lock:
            if size > self._ahead_bytes_left:
                return False
            self._ahead_bytes_left -= size
            return True

    def release(self, size: int) -> None:
        """Give back what `reserve` set aside."""
        with self._lock:
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
        with self._lock:
            self._closed = True
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=wait, cancel_futures=True)
        if self._disk is not None:
            self._disk.close()
        self._memory.clear()

    def _held(self, ident: Ident, piece: Piece) -> memoryview | None:
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
        mine: dict[Ident, Piece],
        found: dict[Ident, memoryview],
        gap_bytes: int,
        admission: Admission,
    ) -> None:
        """Bring one's own pieces in, from the disk or from the bucket."""
        missing: dict[Ident, Piece] = {}
        for ident, piece in mine.items():
            data = self._on_disk(ident, piece, admission)
            if data is None:
                missing[ident] = piece
                continue
            if admission is Admission.NARROW:
                self._memory.put(ident, data)
            found[ident] = self._landed(ident, data)
        if not missing:
            return
        self.counters.add(misses=len(missing), miss_bytes=sum(piece.length for piece in missing.values()))
        ranges = coalesce([piece.range for piece in missing.values()], gap_bytes)
        first = next(iter(missing.values()))
        answers = [memoryview(part) for part in self._get(key, size, ranges, first, admission)]
        for ident, piece in missing.items():
            place = max(i for i, (start, _) in enumerate(ranges) if start <= piece.start)
            at = piece.start - ranges[place][0]
            data = answers[place][at : at + piece.length]
            damaged_at = piece.damage(data)
            if damaged_at is not None:
                raise CorruptionError(
                    piece.reason, where=self.where(key), position=damaged_at, offsets=piece.offsets
                )
            self._admit(ident, data, admission)
            found[ident] = self._landed(ident, data)

    def _on_disk(self, ident: Ident, piece: Piece, admission: Admission) -> memoryview | None:
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

    def _landed(self, ident: Ident, data: memoryview) -> memoryview:
        with self._lock:
            flight = self._flights.pop(ident)
        flight.set_result(data)
        return data

    def _fail(self, mine: dict[Ident, Piece], error: BaseException) -> None:
        for ident in mine:
            with self._lock:
                flight = self._flights.pop(ident, None)
            if flight is not None:
                flight.set_exception(error)

    def _follow(
        self,
        key: str,
        size: int,
        piece: Piece,
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
        self, key: str, size: int, ranges: list[Range], first: Piece, admission: Admission
    ) -> list[bytes]:
        store, bytes_wanted = self._connect(), sum(length for _, length in ranges)

        def ask() -> list[bytes]:
            self.counters.add(requests=len(ranges), request_bytes=bytes_wanted)
            return store.get_ranges(key, ranges) if len(ranges) > 1 else [store.get_range(key, *ranges[0])]

        # What a scan waits for was fetched ahead, and a disk gains nothing from being asked twice.
        hedged = admission is Admission.NARROW and not store.url.startswith(("file:", "memory:"))
        try:
            parts = self._hedge.ask(ask, bytes_wanted) if hedged else ask()
        except ObjectNotFound:
            raise
        except ColdStorageError:
            self._check_size(store, key, size, first)
            raise
        for (start, length), part in zip(ranges, parts, strict=True):
            if len(part) != length:
                raise CorruptionError(
                    f"{len(part)} bytes instead of {length}", where=self.where(key), position=start,
                    offsets=first.offsets,
                )  # fmt: skip
        return parts

    def _check_size(self, store: ObjectStore, key: str, size: int, first: Piece) -> None:
        """Raise `CorruptionError` where a read failed because the object was cut: waiting does not help then."""
        try:
            found = store.stat(key).size
        except ColdStorageError:
            return
        if found != size:
            raise CorruptionError(
                f"object has {found} bytes, the manifest says {size}",
                where=self.where(key),
                position=min(found, size),
                offsets=first.offsets,
            )
