"""`ConsumerFacts`: the positions of the consumers that retention waits for."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Protocol
from uuid import UUID

from ..engine.context import StoreContext
from ..errors import TieredError, as_tiered_error
from ..format.topic_meta import TopicMeta
from ..policies.facts import ConsumerFact, PartitionFacts
from ..reader.lineages import common_end, lineage_of
from ..survey.partition_survey import PartitionSurvey

_log = logging.getLogger("tiered.tierer")


class StoredPosition(Protocol):
    """A position of a consumer; see `transactions.positions.Position`."""

    @property
    def consumer(self) -> str: ...
    @property
    def topic_id(self) -> UUID: ...
    @property
    def partition(self) -> int: ...
    @property
    def offset(self) -> int | None: ...
    @property
    def lineage(self) -> int: ...


class ReadPositions(Protocol):
    """Returns the positions of all consumers; with `durable`, only once no power cut can take them back."""

    def __call__(self, *, durable: bool) -> Iterable[StoredPosition]: ...


class ConsumerFacts:
    """The positions of consumers for one survey.

    They are read before the survey: a position that is read later may be beyond the end that the survey has.
    """

    def __init__(
        self,
        context: StoreContext,
        positions: list[StoredPosition] | None,
        problems: list[TieredError],
    ) -> None:
        self._context = context
        self._positions = positions
        self._problems = problems

    @classmethod
    def read(
        cls,
        context: StoreContext,
        topics: Iterable[str],
        read: Callable[[], Iterable[StoredPosition]],
        problems: list[TieredError],
    ) -> ConsumerFacts:
        """Read the positions, if the retention of one of the topics names consumers.

        Parameters
        ----------
        problems
            Takes the error if the positions cannot be read: then retention waits as for consumers that have read nothing.
        """
        facts = cls(context, [], problems)
        if any(context.settings.policy_for(topic).retention.unless_behind for topic in topics):
            try:
                facts._positions = list(read())
            except (TieredError, OSError) as error:
                facts._positions = None
                facts._report(error)
        return facts

    def added(self, survey: PartitionSurvey, facts: PartitionFacts) -> PartitionFacts:
        """Return the facts with the consumers that have a position in this partition."""
        if not self._context.settings.policy_for(facts.topic).retention.unless_behind:
            return facts
        if self._positions is None:
            return replace(facts, consumers=None)
        try:
            consumers = tuple(
                ConsumerFact(position.consumer, position.offset)
                for position in self._positions
                if (position.topic_id, position.partition) == (survey.meta.topic_id, facts.partition)
                and position.offset is not None
                and self._is_in_log(survey.meta, facts, position, position.offset)
            )
        except (TieredError, OSError) as error:
            self._report(error)
            return replace(facts, consumers=None)
        return replace(facts, consumers=consumers)

    def _is_in_log(
        self, meta: TopicMeta, facts: PartitionFacts, position: StoredPosition, offset: int
    ) -> bool:
        """Whether the position is one of this log: not of a lineage that went on to other records below it."""
        tiers = self._context.tiers
        if position.lineage == lineage_of(tiers, meta, facts.partition):
            return offset <= facts.end_offset
        return offset <= common_end(tiers, meta, facts.partition, position.lineage)

    def _report(self, error: TieredError | OSError) -> None:
        _log.warning("retention waits as if nothing were read: the positions cannot be read: %s", error)
        self._problems.append(as_tiered_error(error))
