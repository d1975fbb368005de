"""`Sequence`: the record numbers of a producer's session."""

from __future__ import annotations

from ..errors import OutOfOrderSequence
from ..format.producers import SEQUENCE_MAX
from .append_numbered import plain_number


class Sequence:
    """The numbers of one session on one topic. The caller holds a lock.

    Attributes
    ----------
    number : int or None
        The number after the producer's highest in the topic; None if the topic has none of its records.
    topic : str
    """

    def __init__(self, producer_id: str, topic: str, number: int | None) -> None:
        self.number = number
        self._producer_id = producer_id
        self.topic = topic

    @property
    def next(self) -> int:
        """The number of a record that is appended without one."""
        return self.number or 0

    def check(self, sequence: int | None) -> int:
        """Return the number of the next append: `sequence`, by default `next`.

        Raises
        ------
        ConfigError
            `sequence` is no valid number.
        OutOfOrderSequence
            Numbers before `sequence` are missing.
        """
        if sequence is None:
            return self.next
        sequence = plain_number("sequence", sequence, SEQUENCE_MAX)
        if self.number is not None and sequence > self.number:
            raise OutOfOrderSequence(
                f"producer {self._producer_id!r} appends number {sequence} to topic {self.topic!r}, and the next is "
                f"{self.number}: the records between were not appended, or were lost in a crash; append them first"
            )
        return sequence

    def advance(self, begin: int, end: int) -> None:
        """Count the numbers ``[begin, end)`` as appended."""
        if end > begin:
            self.number = max(self.next, end)
