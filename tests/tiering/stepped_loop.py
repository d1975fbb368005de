"""The loop of passes without threads."""

from __future__ import annotations

import tiered
from tests.support.clock import Clock
from tiered.settings.schedule import jittered_interval
from tiered.tiering.pass_loop import PassLoop
from tiered.tiering.reports import PassEvent


class Loop:
    """The loop of a store without threads, and the time that it goes by."""

    def __init__(self, store: tiered.Store, clock: Clock, interval: float = 30.0) -> None:
        self.clock = clock
        self.events: list[PassEvent] = []
        self.passes = PassLoop(
            store.tierer,
            store.topics,
            store.context.settings.policy_for,
            schedule=jittered_interval(interval, draw=lambda: 0.5),
            clock=clock,
            monotonic=lambda: clock() / 1e6,
            draw=lambda: 0.5,
            observe=self.events.append,
        )
        self.go(1.0)  # finds the topics, and does the first full pass

    def go(self, seconds: float) -> list[str]:
        """Let time pass, and run what falls due on the way."""
        ran: list[str] = []
        until = self.clock() + round(seconds * 1e6)
        while True:
            ran += self.passes.run_due()
            left = (until - self.clock()) / 1e6
            if left <= 0:
                return ran
            self.clock.advance(min(left, max(0.001, self.passes.due_in())))
