"""The numbers of a producer's session: which comes next, and which would leave a gap."""

from __future__ import annotations

from ..errors import OutOfOrderSequence
from ..format.producers import SEQUENCE_MAX
from .append_numbered import checked_number


class Sequence:
    """The numbers of one session on one topic; its caller locks.

    Attributes
    ----------
    number : int or None
        The number after the highest one that the topic has of the producer; None where it has none.
    topic : str
    """

    def __init__(self, producer_id: str, topic: str, number: int | None) -> None:
        self.number = number
        self._producer_id = producer_id
        self.topic = topic

    @property
    def next(self) -> int:
        """What a record is numbered whose number is not given."""
        return self.number or 0

    def check(self, sequence: int | None) -> int:
        """Return the number of what is to be appended.

        Raises
        ------
        ConfigError
            It is no number.
        OutOfOrderSequence
            Numbers before it are missing.
        """
        if sequence is None:
            return self.next
        sequence = checked_number("sequence", sequence, SEQUENCE_MAX)
        if self.number is not None and sequence > self.number:
            raise OutOfOrderSequence(
                f"producer {self._producer_id!r} appends number {sequence} to topic {self.topic!r}, and the next is "
                f"{self.number}: what lies between was not appended, or lost with a crash; append it first"
            )
        return sequence

    def advance(self, begin: int, end: int) -> None:
        """Count the numbers from `begin` up to `end` as appended."""
        if end > begin:
            self.number = max(self.next, end)
