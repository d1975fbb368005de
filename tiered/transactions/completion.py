"""`Completion`: carries decided transactions to their end, also after a crash, and drops completed ones from the log."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from uuid import UUID

from ..engine.context import Place, StoreContext
from ..engine.open_topics import OpenTopic, OpenTopics
from ..engine.writers import open_partition_writer
from ..errors import CorruptionError, StoreClosed, TieredError, TopicNotFound
from ..format.document import TRANSACTIONS_FEATURE
from ..format.schema import TRANSACTIONS_TOPIC
from ..format.topic_meta import TopicMeta
from ..hot.held_partition import HeldPartition
from ..hot.partition_writer import PartitionWriter
from .log_records import LostRecord
from .parts import TRANSACTIONS_PRODUCER, Part, part_batches
from .placing import last_rows, numbers_of
from .staged_appends import append_staged
from .transaction_log import TransactionLog
from .transaction_table import Decided

_log = logging.getLogger("tiered.topic")

_OPEN_MAX = 1024
_RENEW_SECONDS = 1.0


class Completion:
    """The decided transactions of one open store, until they are durable and published.

    Parameters
    ----------
    in_background
        Runs a function on a thread of its own; returns whether it does.
    """

    def __init__(
        self,
        context: StoreContext,
        topics: OpenTopics,
        log: TransactionLog,
        in_background: Callable[[Callable[[], None]], bool],
    ) -> None:
        self._context = context
        self._topics = topics
        self._log = log
        self._in_background = in_background
        self._holds_transactions = False
        self._renewing = False
        self._renew_after = 0.0
        # Where an earlier pass wants the log to begin.
        self._asked = 0

    def recover(self) -> None:
        """Append what is missing of the transactions that an earlier writer decided.

        A partition that cannot be opened now keeps its rows in the log until it is.

        Raises
        ------
        CorruptionError, UnsupportedFormat, DiskFull, PartitionPoisoned
            The transaction log cannot be read.
        """
        if TRANSACTIONS_FEATURE not in self._context.catalog.features():
            return
        self._holds_transactions = True
        # Before a writer drops the request.
        self._asked = self._log.renewal.asked()
        parts = {part.place: part for part in self._open_parts()}.values()
        if self._context.catalog.lineage() > 1:
            # Readers in other processes go by the log, so it has the offsets before the partitions have the rows.
            for part in parts:
                with suppress(TieredError):  # which comes again below
                    self._place_missing(part)
            self._log.renewal.rewrite_if_moved()
        for part in parts:
            try:
                topic = self.topic_of(part.topic, part.topic_id)
                if topic is not None:
                    topic.writer(part.partition)
            except TieredError as error:
                _log.warning(
                    "a transaction is not complete in partition %d of topic %r: %s",
                    part.partition, part.topic, error,
                )  # fmt: skip
        self._log.renewal.rewrite_if_moved()
        self.settle(ask=False)
        if self._asked:
            try:
                self._log.renewal.open_writer()
            except TieredError as error:
                _log.warning("the transaction log cannot be shortened now: %s", error)
            self.shorten_log_soon(self._asked)

    def _place_missing(self, lacking: Part) -> None:
        """Record the offsets that missing rows of a partition will get: a restore may have lost records before them."""
        topic = self.topic_of(lacking.topic, lacking.topic_id)
        if topic is None:
            return
        opened = open_partition_writer(self._context, topic.meta, lacking.partition)
        with closing(opened) as writer, writer.held() as held:
            last, end = held.last_sequence(TRANSACTIONS_PRODUCER), held.end_offset
        for decided in self._log.open_transactions():
            for at, part in enumerate(decided.parts):
                missing = part.missing_rows(last) if part.place == lacking.place else 0
                if missing > 0 and not part.is_deleted(missing, end):
                    end += missing
                    if end != part.end_offset:
                        self._log.move(decided.offset, at, end - part.rows)

    def end_shortening(self) -> None:
        """Before the store closes: shorten the log as a pass asked before the store was opened, unless that is done."""
        self.shorten_log(self._asked)

    def complete(self, meta: TopicMeta, partition: int, writer: PartitionWriter) -> None:
        """Append to a partition what it lacks of decided transactions, before anything else is appended.

        Raises
        ------
        CorruptionError, DiskFull, PartitionPoisoned
        """
        if not self._holds_transactions or meta.name == TRANSACTIONS_TOPIC:
            return
        for decided in self._log.open_transactions():
            for at, part in enumerate(decided.parts):
                if (part.topic_id, part.partition) == (meta.topic_id, partition):
                    self._complete_part(meta, writer, decided, at)

    def resume(self, place: Place, held: HeldPartition) -> None:
        """Append the missing rows to a suspended partition; nothing was appended since, so they get the decided offsets.

        Raises
        ------
        DiskFull, CorruptionError, PartitionPoisoned
        """
        for decided in self._log.open_transactions():
            for at, part in enumerate(decided.parts):
                if part.place == place:
                    missing = part.missing_rows(held.last_sequence(TRANSACTIONS_PRODUCER))
                    if missing > 0 and not self._append_missing(held.meta, held, decided, at, missing):
                        raise CorruptionError("a repair has given up rows of a transaction")

    def _complete_part(self, meta: TopicMeta, writer: PartitionWriter, decided: Decided, at: int) -> None:
        part, end = decided.parts[at], decided.parts[at].first_number + decided.parts[at].rows
        with writer.held() as held:
            missing = part.missing_rows(held.last_sequence(TRANSACTIONS_PRODUCER))
            if part.is_deleted(missing, held.end_offset):
                held.continue_numbers(TRANSACTIONS_PRODUCER, end)
                missing = 0
            if missing > 0 and not self._append_missing(meta, held, decided, at, missing):
                held.continue_numbers(TRANSACTIONS_PRODUCER, end)
                held.release()
                missing = 0
            if missing > 0:
                first = held.end_offset - part.rows
                _log.info(
                    "completed a transaction: offsets %d to %d of partition %d of topic %r",
                    held.end_offset - missing, held.end_offset, part.partition, part.topic,
                )  # fmt: skip
        if missing <= 0:
            known = writer.offsets_from(TRANSACTIONS_PRODUCER, part.first_number)
            first = part.first_offset if known is None else known[0]
        if first != part.first_offset:
            self._log.move(decided.offset, at, first)

    def _append_missing(
        self, meta: TopicMeta, held: HeldPartition, decided: Decided, at: int, missing: int
    ) -> bool:
        """Append the last rows of a part; False if a repair has given some of them up."""
        part, decided_us = decided.parts[at], self._log.last_append_us()
        if decided.records:
            failed = append_staged(
                self._log.staged, decided, {part.place: held}, {part.place: missing},
                block_bytes=self._context.settings.store.block_bytes, decided_us=decided_us,
            )  # fmt: skip
            for error in failed.values():
                if not isinstance(error, LostRecord):
                    raise error
                _log.error(
                    "rows of a transaction in partition %d of topic %r stay lost: %s",
                    part.partition, part.topic, error,
                )  # fmt: skip
            return not failed
        bodies = last_rows(part_batches(meta, decided.parts, self._log.data_of(decided), at), missing)
        held.append(bodies, numbers_of(bodies, part.first_number + part.rows - missing), decided_us)
        return True

    # -- shortening the log ----------------------------------------------------------------------

    def settle(self, *, ask: bool) -> None:
        """Make the rows of all transactions durable in their partitions, and say so in the log.

        With a bucket, rows also have to be published. What fails stays open, and is tried again with a later transaction or
        opening.

        Parameters
        ----------
        ask
            Read from the bucket what is published; False sends no request.
        """
        try:
            for part in self._open_parts():
                with suppress(TieredError):
                    topic = self.topic_of(part.topic, part.topic_id)
                    if topic is not None and not _is_durable(part, topic.writer(part.partition)):
                        topic.writer(part.partition).flush()
            self._forget_durable(ask=ask)
            self._log.mark_applied()
        except StoreClosed:
            pass
        except TieredError as error:
            _log.warning("the transaction log cannot be shortened now: %s", error)

    def shorten_log(self, offset: int) -> None:
        """Move the start of the log to `offset` or beyond, as far as its transactions are applied and published."""
        if self._log.renewal.begins_before(offset):
            self.settle(ask=True)
            self._log.renewal.renew_beyond(offset)

    def shorten_log_soon(self, offset: int) -> None:
        """As `shorten_log`, on another thread; does nothing while that thread changes the log."""

        def shorten() -> None:
            try:
                self.shorten_log(offset)
            finally:
                self._renewing = False

        if not self._renewing:
            self._begin(shorten)

    def renew_if_due(self) -> None:
        """Shorten the log if it is long; commits do not wait for the bucket."""
        self._log.renewal.rewrite_if_moved()
        if self._log.renewal.is_due and self._context.tiers.has_cold:
            if not self._renewing and time.monotonic() >= self._renew_after:
                self._begin(self._renew)
        elif self._log.renewal.is_due:
            self.settle(ask=False)
            self._log.renewal.renew_if_due()
        elif self._log.open_count >= _OPEN_MAX and not self._context.tiers.has_cold:
            self._forget_durable(ask=False)

    def _begin(self, work: Callable[[], None]) -> None:
        """Run what changes the log in the background; it ends with `_renewing` as False."""
        self._renewing = True
        if not self._in_background(work):
            self._renewing = False

    def _renew(self) -> None:
        try:
            self.settle(ask=True)
            self._log.renewal.renew_if_due()
        finally:
            self._renewing = False
            self._renew_after = time.monotonic() + _RENEW_SECONDS

    def _forget_durable(self, *, ask: bool) -> None:
        ends: dict[Place, int] = {}
        self._log.forget(
            [item for item in self._log.open_transactions() if self._is_applied(item, ends, ask)]
        )

    def _is_applied(self, decided: Decided, ends: dict[Place, int], ask: bool) -> bool:
        """Whether the rows of a transaction are where no crash, and with a bucket no lost disk, can take them.

        Parameters
        ----------
        ends
            The published ends that are known by now; the function adds to them.
        """
        for part in decided.parts:
            topic = self.topic_of(part.topic, part.topic_id)
            if topic is None:
                continue
            writer = topic.writer(part.partition)
            if not _is_durable(part, writer):
                return False
            offloads = self._context.settings.policy_for(part.topic).offload.after is not None
            if offloads and self._context.tiers.has_cold and part.end_offset > writer.start_offset:
                if part.place not in ends:
                    end = self._context.fencing.end_in_bucket(topic.meta, part.partition, ask=ask)
                    ends[part.place] = end or 0
                if ends[part.place] < part.end_offset:
                    return False
        return True

    def _open_parts(self) -> Iterator[Part]:
        for decided in self._log.open_transactions():
            yield from decided.parts

    def topic_of(self, name: str, topic_id: UUID) -> OpenTopic | None:
        """Return a topic; None if it was deleted."""
        try:
            topic = self._topics.topic(name)
        except TopicNotFound:
            return None
        return topic if topic.meta.topic_id == topic_id else None


def _is_durable(part: Part, writer: PartitionWriter) -> bool:
    return writer.durable_sequence(TRANSACTIONS_PRODUCER) >= part.first_number + part.rows - 1
