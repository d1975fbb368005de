"""`ConsumerPipe`: prints a topic from a consumer's position on, for ``tiered read --group``."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pyarrow as pa

from ..base.caller import has_ended
from ..errors import ConfigError
from ..store.interface.consumer import Consumer
from ..store.interface.store import Store
from ..transactions.positions import Position
from .changes import confirm
from .deferred_signals import DeferredSignals
from .options import names_server
from .output import sleep_while_read
from .records import RecordPrinter

# An interrupted batch is not committed, and is printed again by the next run.
_BATCH_RECORDS = 1_000
_COMMIT_SECONDS = 1.0
# A signal waits for a poll that has no records.
_POLL_SECONDS = 0.5


class ConsumerPipe:
    """Prints records from the stored position of a consumer on, and commits the offsets behind what was printed.

    A record is committed only after it was printed and flushed, so an end at any time loses none.

    Parameters
    ----------
    partition
        The only partition to read; None reads all of them, also those that are added meanwhile.
    start
        Where a consumer without a position begins: an offset, ``"earliest"``, ``"latest"`` or a time; None means the
        earliest offset.
    yes
        Take the consumer over from an owner that may still run, without a question.

    Raises
    ------
    ConfigError
        There is a `start`, and the consumer has a position; or there is nobody to ask.
    ReadOnly
        The store cannot commit.
    PositionLost, OffsetOutOfRange
    """

    def __init__(
        self, store: Store, topic: str, group: str, partition: int | None, start: Any, *, yes: bool
    ) -> None:
        self._store = store
        self._topic = topic
        self._group = group
        self._partition = partition
        stored = [
            position
            for position in store.consumers()
            if (position.consumer, position.topic) == (group, topic)
            and partition in (None, position.partition)
        ]
        if start is not None:
            self._check_new(stored)
        self._ask_owners(stored, yes)
        self._consumer = self._begin("earliest" if start is None or isinstance(start, int) else start)
        if isinstance(start, int):
            self._consumer.seek(dict.fromkeys(self._consumer.partitions, start))
        self._consumer.commit()  # The start of a new consumer is its position, even if this run prints nothing.
        self._printed = self._consumer.position()
        self._due = time.monotonic() + _COMMIT_SECONDS

    def _check_new(self, stored: list[Position]) -> None:
        if any(position.offset is not None for position in stored):
            raise ConfigError(
                f"consumer {self._group!r} has a position in topic {self._topic!r}, and goes on there: leave out --from "
                "and --since, or move it by `tiered consumers reset`"
            )

    def _ask_owners(self, stored: list[Position], yes: bool) -> None:
        """Ask before a consumer is fenced. Where this process writes the store itself, no other runs."""
        owners = {position.note for position in stored if not has_ended(position.note)}
        if owners and names_server(self._store.url):
            confirm(
                f"take consumer {self._group} of topic {self._topic} over from {', '.join(sorted(owners))}",
                yes,
            )

    def _begin(self, start: Any) -> Consumer:
        return self._store.topic(self._topic).consumer(self._group, partitions=self._partition, start=start)

    def run(self, printer: RecordPrinter, limit: int | None, *, follow: bool) -> None:
        """Print the present records, at most `limit`; with `follow` also new ones, until a signal or an error ends it."""
        with DeferredSignals() as signals:
            try:
                for batch in self._batches(limit, follow, signals):
                    with signals.at_once():
                        printer.write(batch if printer.columns is None else batch.select(printer.columns))
                    self._printed[batch.column("partition")[0].as_py()] = (
                        batch.column("offset")[-1].as_py() + 1
                    )
            finally:
                try:
                    with suppress(BrokenPipeError):
                        printer.close()
                finally:
                    self._commit(sync=True)
                    self._consumer.close()

    def _batches(
        self, remaining: int | None, follow: bool, signals: DeferredSignals
    ) -> Iterator[pa.RecordBatch]:
        ends = {key: self._printed[key] + lag for key, lag in self._consumer.lag().items()}
        while remaining != 0 and (follow or any(self._printed[key] < end for key, end in ends.items())):
            batches = self._consumer.poll(
                _POLL_SECONDS if follow else 0,
                _BATCH_RECORDS if remaining is None else min(remaining, _BATCH_RECORDS),
            )
            signals.check()
            yield from batches
            if remaining is not None:
                remaining -= sum(batch.num_rows for batch in batches)
            if not batches:
                if not follow:
                    return
                sleep_while_read(0)
            if not batches or time.monotonic() >= self._due:
                self._commit()
                self._take_new_partitions()

    def _commit(self, *, sync: bool | None = None) -> None:
        committed = self._consumer.committed()
        moved = {key: at for key, at in self._printed.items() if committed.get(key) != at}
        if moved:
            self._consumer.commit(moved, sync=sync)
        self._due = time.monotonic() + _COMMIT_SECONDS

    def _take_new_partitions(self) -> None:
        if self._partition is None and self._store.topic(self._topic).partitions > len(
            self._consumer.partitions
        ):
            self._consumer = self._begin("earliest")
            self._printed = self._consumer.position()
