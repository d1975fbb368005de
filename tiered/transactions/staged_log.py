"""`StagedLog`: the part of the transaction log that holds staged rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from ..engine.context import Place
from ..errors import ConfigError
from .batches import BatchTable
from .log_records import staged_at
from .log_topic import LogTopic
from .parts import Part
from .positions import BATCHES, record
from .staged_rows import Batch, PlaceRows, staged_row


class StagedLog:
    """Staged rows of one open store. Thread-safe."""

    def __init__(self, log: LogTopic) -> None:
        self._log = log

    def append(self, query: str, attempt: str, number: int, parts: Sequence[Part], data: list[bytes]) -> int:
        """Append one record of the rows of an attempt; return the offset behind it. It is not durable.

        Raises
        ------
        ConfigError
            The attempt has rows from before.
        DiskFull, PartitionPoisoned, StoreClosed, ReadOnly
        """
        row = staged_row(query, attempt, number, parts, data)
        with self._log.lock:
            topic = self._log.staging()
            if number == 0 and self._log.tables.staged.knows(attempt):
                raise ConfigError(f"attempt {attempt} is staged already; give each attempt a new name")
            return self._log.append_whole(topic, [row], self._log.context.clock())

    def sync(self, end: int) -> None:
        """Make the records before `end` durable."""
        with self._log.lock:
            topic = self._log.writable()
        topic.writer(0).sync_to(end)

    def has_batch(self, query: str, number: int) -> bool:
        """Whether the log has a batch of a query, or a later one; then it is durable.

        Raises
        ------
        PartitionPoisoned
            The disk failed, so that this is unknown until the store is open again.
        """
        with self._log.lock:
            has = self._log.current().batches.last(query) >= number
            topic, end = self._log.topic, self._log.end
        if has and topic is not None:
            topic.writer(0).sync_to(end)
        return has

    def places(self, batch: Batch) -> dict[Place, PlaceRows]:
        """Return topic, number and bytes of the rows of a batch, by partition.

        Raises
        ------
        ConfigError
            Rows are missing.
        """
        places: dict[Place, PlaceRows] = {}
        with self._log.lock:
            self._log.writable()
            for attempt in self._log.tables.staged.find(batch):
                for place, (topic, rows, size) in attempt.places.items():
                    before = places.get(place, PlaceRows(topic, 0, 0))
                    places[place] = PlaceRows(topic, before.rows + rows, before.bytes + size)
        return places

    def records(self, batch: Batch) -> Iterator[tuple[list[Part], list[bytes]]]:
        """Yield the parts and blocks of each record of a batch's rows; a renewal may append records again meanwhile.

        Raises
        ------
        ConfigError, CorruptionError
        """
        with self._log.lock:
            counts = [len(attempt.records) for attempt in self._log.tables.staged.find(batch)]
        for at, count in enumerate(counts):
            for number in range(count):
                with self._log.lock:  # a renewal may append the record again
                    attempt = self._log.tables.staged.find(batch)[at]
                    found = staged_at(self._log.writable(), attempt.records[number])
                yield found

    def drop(self, query: str, attempts: Iterable[str] | None = None) -> None:
        """Forget the rows of some attempts of a query, by default of all."""
        with self._log.lock:
            self._log.writable()
            self._log.tables.staged.drop(query, attempts)

    def forget(self) -> None:
        """Forget the attempts that staged nothing more for `ROWS_SECONDS`."""
        with self._log.lock:
            self._log.tables.staged.forget(self._log.context.clock())

    def record_at(self, offset: int) -> tuple[list[Part], list[bytes]]:
        """Return the parts and blocks of the staged rows in the record at an offset.

        Raises
        ------
        CorruptionError
        """
        with self._log.lock:
            topic = self._log.writable()
        return staged_at(topic, offset)

    def import_batches(self, batches: Iterable[tuple[str, int, int]]) -> None:
        """Store durably which batches queries have, as query, number and time in microseconds since the epoch."""
        with self._log.lock:
            topic, table = self._log.staging(), BatchTable()
            for batch in batches:
                table.add(*batch)
            end = self._log.end
            for note in table.to_notes():
                end = self._log.append(topic, record(BATCHES, "", "", (), note))
        topic.writer(0).sync_to(end)
