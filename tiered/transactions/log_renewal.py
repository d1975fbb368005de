"""`LogRenewal`: keeps the transaction log short.

After some thousands of records, the writer rolls the segment of the log, appends the whole table again and makes it durable.
Then it moves the start offset to the table, or to an earlier record with rows that still wait: staged rows, and rows of a
transaction that may not be durable in its partitions. With transactions it moves the start offset one renewal later. After a
crash between these steps, the next renewal repeats them.

Staged rows may wait for a day. Once more than twice their size was appended since, a renewal appends them again at the end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from uuid import uuid4

from ..engine.open_topics import OpenTopic
from ..engine.topics import delete_before, remove_deleted_segments
from ..errors import StoreClosed, TieredError
from ..warm.writer_requests import asked_to_shorten
from .log_records import data_at, staged_at
from .log_topic import LogTopic
from .positions import APPLIED, TRANSACTION, record
from .staged_rows import staged_row

_log = logging.getLogger("tiered.topic")

RENEW_RECORDS_MIN = 1 << 12
"""The least number of records after which the table is appended again; with many positions it is four times as many."""
CLOSE_RECORDS_MAX = 1 << 8
"""The number of records that a clean close leaves for the next opening to read."""
RENEW_BYTES_MIN = 256 << 20
"""The least bytes of rows of transactions after which the table is appended again."""
_RECORD_BYTES = 256
"""About what a record without rows takes."""


class LogRenewal:
    """Renewals of the log of one open store. Thread-safe."""

    def __init__(self, log: LogTopic) -> None:
        self._log = log
        self._renewed = 0
        self._bytes_before = 0

    @property
    def is_due(self) -> bool:
        """Whether the log is long enough to be renewed."""
        tables = self._log.tables
        records_max = max(RENEW_RECORDS_MIN, 4 * len(tables.positions))
        return tables.records >= records_max or tables.bytes >= max(RENEW_BYTES_MIN, 2 * tables.staged.bytes)

    def asked(self) -> int:
        """Return the start offset that a pass asked for when it found no writer; 0 if none did. Opening the writer drops it."""
        topic = self._log.open()
        directory = None if topic is None else self._log.context.tiers.directory(topic.name, 0)
        return 0 if topic is None or directory is None else asked_to_shorten(directory, topic.meta.topic_id)

    def open_writer(self) -> None:
        """Open the writer of the log, if the store has a log: without its writer, a process does not shorten it."""
        with self._log.lock:
            self._log.current()
            if self._log.topic is not None:
                self._log.topic.writer(0)

    def begins_before(self, offset: int) -> bool:
        """Whether this process writes the log, and it begins before an offset."""
        topic = self._log.topic
        return topic is not None and 0 in topic.writers and topic.writers[0].start_offset < offset

    def renew_if_due(self) -> None:
        """Append the table again if the log is long, and move the start offset to it."""
        if not self.is_due:
            return
        with self._log.lock:
            topic = self._log.topic
            if topic is None or not self.is_due:
                return
            self._shorten(topic, self._renew)
        self._remove_deleted(topic)

    def renew_beyond(self, offset: int) -> None:
        """Append the table again and delete what is before `offset`, as far as no transaction before it is open.

        If the log begins with an open transaction, nothing is appended.
        """
        with self._log.lock:
            topic = self._log.topic
            if (
                topic is None
                or self._log.tables.decided.first_record(self._log.end) <= topic.writer(0).start_offset
            ):
                return
            if self._shorten(topic, self._renew) and self.begins_before(offset):
                self._shorten(topic, lambda topic: self._delete_before(topic, self._renewed))

    def renew_at_close(self) -> None:
        """Leave little to read for the next opening."""
        with self._log.lock:
            topic, tables = self._log.topic, self._log.tables
            if topic is None or tables.records <= max(CLOSE_RECORDS_MAX, 4 * len(tables.positions)):
                return
            if self._shorten(topic, self._renew):
                # Readers in other processes that began before begin again: no other renewal follows.
                self._shorten(topic, lambda topic: self._delete_before(topic, self._renewed))
        self._remove_deleted(topic)

    def rewrite_if_moved(self) -> None:
        """Append the table and the open transactions again, with the offsets that their rows have, and delete what is older.

        Readers in other processes and in the bucket go by these offsets. A crash in between repeats it.
        """
        with self._log.lock:
            topic = self._log.topic
            if topic is None or not self._log.offsets_moved:
                return
            if self._shorten(topic, self._rewrite):
                self._log.offsets_moved = False

    def _shorten(self, topic: OpenTopic, shorten: Callable[[OpenTopic], None]) -> bool:
        """Call a function that appends the content of the log again; return whether it succeeded. The caller holds the lock."""
        try:
            shorten(topic)
        except StoreClosed:
            return False
        except TieredError as error:
            # The positions are stored; only old records stay for longer.
            _log.warning("the transaction log cannot be shortened now: %s", error)
            return False
        return True

    def _remove_deleted(self, topic: OpenTopic) -> None:
        """Remove files before the start offset; with a bucket, passes do that."""
        if not self._log.context.tiers.has_cold:
            try:
                remove_deleted_segments(topic, 0)
            except TieredError as error:
                _log.warning("old files of the transaction log stay for now: %s", error)

    def _renew(self, topic: OpenTopic) -> None:
        log = self._log
        self._bytes_before += log.tables.bytes + log.tables.records * _RECORD_BYTES
        log.tables.staged.forget(log.context.clock())
        topic.writer(0).roll()
        start = log.tables.decided.first_record(log.end)
        self._append_tables(topic)
        if self._bytes_before >= 2 * log.tables.staged.bytes:
            self._append_staged(topic, start)
        start = log.tables.staged.first(start)
        if log.holds_transactions:
            # A reader in another process that began before still finds what was decided meanwhile.
            start, self._renewed = self._renewed, start
        self._delete_before(topic, start)

    def _rewrite(self, topic: OpenTopic) -> None:
        log = self._log
        topic.writer(0).roll()
        start = self._renewed = log.end
        self._append_tables(topic)
        # The job whose staged rows no batch has committed stages them again.
        log.tables.staged.clear()
        for decided in log.tables.decided.open():
            now_us = log.context.clock()
            records = []
            for offset in decided.records:
                row = staged_row("", uuid4().hex, 0, *staged_at(topic, offset))
                records.append(log.append_whole(topic, [row], now_us) - 1)
            row = record(TRANSACTION, "", "", ())
            row |= {"parts": decided.parts, "data": [] if records else data_at(topic, decided.offset)}
            if records:
                row["records"] = records
            log.tables.decided.forget([decided])
            log.append_whole(topic, [row], now_us)
        # Last: a crash before this leaves some transactions in the log twice, and their rows are recognised by their numbers.
        log.append(topic, {**record(APPLIED, "", "", ()), "applied": start})
        self._delete_before(topic, start)

    def _append_staged(self, topic: OpenTopic, before: int) -> None:
        """Append the staged rows before an offset again, with the time at which they were staged."""
        log = self._log
        for at, number, name, attempt in log.tables.staged.before(before):
            row = staged_row(attempt.query, name, number, *staged_at(topic, at))
            log.append_whole(topic, [row], attempt.time_us)
        self._bytes_before = 0

    def _append_tables(self, topic: OpenTopic) -> None:
        """Append records whose replay gives the tables as they are, without open transactions and staged rows."""
        log = self._log
        log.tables.batches.forget(log.context.clock())
        log.tables.begin_count()
        for row in log.tables.rows(transactions=log.holds_transactions):
            log.append(topic, row)

    def _delete_before(self, topic: OpenTopic, start: int) -> None:
        # It makes the new records durable first.
        delete_before(topic, max(start, topic.writer(0).start_offset), 0)
