"""The executors of passes: the handlers of all actions, and the checks before each action."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager

from ..engine.context import StoreContext
from ..engine.open_topics import OpenTopics
from ..engine.writers import is_gone
from ..errors import RestoreUnderWay
from ..policies.actions import Action
from ..policies.executor import Executor, Handler, Outcome
from ..policies.running_actions import RunningActions
from .claims import Claims
from .pauses import Pauses
from .tiering_locks import TieringLocks


class PassExecutors:
    """Makes the executors of one store's passes.

    Attributes
    ----------
    handlers
        The handler of each kind of action.
    running
        The actions that run now.
    observe
        Called after each action, on its thread; must not raise.
    """

    def __init__(
        self,
        context: StoreContext,
        topics: OpenTopics,
        claims: Claims,
        pauses: Pauses,
        locks: TieringLocks,
        handlers: Mapping[type[Action], Handler],
    ) -> None:
        self._context = context
        self._topics = topics
        self._claims = claims
        self._pauses = pauses
        self._locks = locks
        self.handlers = handlers
        self.running = RunningActions()
        self.observe: Callable[[Outcome], None] = lambda _: None

    def executor(self, should_stop: Callable[[], bool]) -> Executor:
        """Return the executor of one pass over the topics that exist now."""
        locked_out = threading.Event()

        def turn() -> AbstractContextManager[None]:
            return self._locks.turn_of_pass(should_stop, locked_out)

        return Executor(
            self.handlers,
            # After one wait that took too long, each further action would wait as long.
            should_stop=lambda: locked_out.is_set() or self._locks.stops(should_stop),
            turn=turn,
            skip_reason=self._obstacle,
            is_gone=self._deletion_check(),
            running=self.running,
            observe=self.observe,
        )

    def _obstacle(self, action: Action) -> str:
        """Return the pause or the restore that forbids an action now; else empty."""
        pause = self._pauses.of_store() if action.whole_store else self._pauses.of(action.topic)
        if pause is not None:
            return str(pause)
        if self._context.tiers.has_cold and (action.publishes or action.whole_store):
            try:
                self._claims.store.check_restores()
            except RestoreUnderWay as restore:
                return str(restore)
        return ""

    def _deletion_check(self) -> Callable[[Action], bool]:
        """Return a check whether the topic of an action, of those that exist now, was deleted since."""
        planned = {topic.name: topic.meta for topic in self._topics.opened_topics()}

        def deleted(action: Action) -> bool:
            meta = planned.get(action.topic)
            return not action.whole_store and (meta is None or is_gone(self._context, meta))

        return deleted
