"""`Producer`: a session of an idempotent producer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from ...engine.records import Appended, OffsetRange
from ...engine.sequence import Sequence
from ...format.record import Headers


class Producer(ABC):
    """A session of an idempotent producer; get it from `Topic.producer`. Thread-safe.

    Attributes
    ----------
    id : str
    epoch : int
        The number of this session; a later session of the same producer has a higher one.
    """

    id: str
    epoch: int
    sequence: Sequence

    @property
    def next_sequence(self) -> int:
        """The number after the producer's highest in the topic; 0 if the topic has none of its records.

        After a crash, a topic with several partitions can lack some lower numbers. Append again from the first number that
        no flush acknowledged; the topic recognises the records that it has.
        """
        return self.sequence.next

    @abstractmethod
    def append(
        self,
        value: Any,
        *,
        sequence: int | None = None,
        key: bytes | str | int | None = None,
        headers: Mapping[str, bytes] | Headers | None = None,
        timestamp: object = None,
        partition: int | None = None,
        sync: bool | None = None,
    ) -> Appended:
        """Append one record with a number, unless the topic has this number already; else like `Topic.append`.

        Parameters
        ----------
        sequence
            The record's number; default `next_sequence`, which is also the highest allowed. The first record of a producer
            may have any number. Repeat records with their first key or partition, and in the order of their numbers.
        partition
            Default: the key chooses; without a key, the producer's id does.

        Returns
        -------
        Appended
            For a repeat, the result of the first append. Its offset is -1 if the partition no longer remembers it; the
            record is in the log all the same.

        Raises
        ------
        OutOfOrderSequence
            Numbers between the last one and this one are missing; nothing was appended.
        Fenced
            A newer session of this producer began, or a newer lineage owns the partition.
        SchemaMismatch, RecordTooLarge, DiskFull, StoreClosed, ReadOnly, StoreLocked, PartitionPoisoned
            Nothing was appended, unless only the wait for the disk failed. It is always safe to append again with the
            same number.
        ColdStorageError
            Mode ``cold`` only: the record is durable on this disk and not published yet.
        """

    @abstractmethod
    def append_batch(
        self,
        data: Any,
        *,
        sequence: int | None = None,
        partition: int | None = None,
        sync: bool | None = None,
    ) -> list[OffsetRange]:
        """Append Arrow data with numbers and skip the rows that the topic has; else like `Topic.append_batch`.

        Each batch of `data` is appended in runs of up to 8 MiB of one partition, each wholly or not at all.

        Parameters
        ----------
        sequence
            The number of the first row; row i has the number ``sequence + i``. Default `next_sequence`.
        partition
            The partition of all rows. Default: each row's key chooses; for rows without a key, the producer's id does.

        Returns
        -------
        list of OffsetRange
            For a repeat, the result of the first call, with -1 for offsets that are no longer remembered. If the repeat
            completes an interrupted append, a range extends from its first row to its last.

        Raises
        ------
        OutOfOrderSequence
            Nothing was appended.
        SchemaMismatch, RecordTooLarge
            Nothing of a Table was appended. Of other data, the batches before the wrong one were appended with their
            numbers, and nothing after them.
        Fenced, DiskFull, StoreClosed, ReadOnly, StoreLocked, PartitionPoisoned, ColdStorageError
            A part may have been appended; the same call with the same `sequence` appends the rest. `next_sequence` moves
            only when all rows are appended. So repeat the same call; other data would be dropped as a repeat. If only the
            wait for the disk or the bucket failed, all rows are appended, `next_sequence` has moved, and `flush` waits
            again.
        """

    @abstractmethod
    def flush(self) -> None:
        """Return when all records appended to the topic before the call are durable; see `Topic.flush`."""

    def __repr__(self) -> str:
        return f"<Producer {self.id!r} of topic {self.sequence.topic!r}: epoch {self.epoch}>"
