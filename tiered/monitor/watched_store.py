"""`WatchedStore`: the parts of an open store that status, figures, explanations, metrics and the page need."""

from __future__ import annotations

from dataclasses import dataclass

from ..engine.context import StoreContext
from ..engine.open_topics import OpenTopics
from ..policies.running_actions import RunningActions
from ..tiering.pass_loop import PassLoop
from ..tiering.pauses import Pauses
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
