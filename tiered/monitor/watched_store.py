"""`WatchedStore`: the parts of an open store that status, figures, explanations, metrics and the page need."""

from __future__ import annotations

from dataclasses import dataclass

from ..engine.context import StoreContext
from ..engine.open_topics import OpenTopics
from ..policies.running_actions import RunningActions
from ..tiering.pass_loop import PassLoop
from ..tiering.pauses import Pause, Pauses
from ..tiering.store_survey import StoreSurvey
from .consumer_lag import ConsumerLags
from .table_lag import TableLags


@dataclass(frozen=True, slots=True)
class WatchedStore:
    """An open store, for its operator's views.

    Attributes
    ----------
    running
        The running actions.
    seconds_a_tail
        As in `TailPasses`.
    passes
        The pass loop of this process; None if it runs no passes.
    """

    context: StoreContext
    topics: OpenTopics
    survey: StoreSurvey
    pauses: Pauses
    running: RunningActions
    seconds_a_tail: float
    consumer_lags: ConsumerLags
    table_lags: TableLags
    passes: PassLoop | None = None

    def paused_topics(self) -> dict[str, Pause]:
        """Return the pauses of the topics that are paused now, by name."""
        return self.pauses.among(self.topics.topic_names())
