"""Group commit: one thread writes and syncs for all that wait (leader and followers)."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..base.condition import InterruptSafeCondition

_GATHER_SECONDS_MAX = 0.002
_GATHER_STEP_SECONDS = 0.00002


class GroupCommit:
    """Lets the first thread that waits do the work for every thread that comes while it does.

    The threads a commit wakes run one after the other (they share the interpreter), and the first of them
    to append again would lead a commit of its one record, and so would the next. So a leader first lets
    as many followers join as were woken before it, for no longer than a sync takes. A thread that is alone
    never waits.
    """

    def __init__(self) -> None:
        self._news = InterruptSafeCondition()
        self._leading = False
        self._followers = 0
        self._expected = 0
        self._commit_seconds = 0.0

    def run(self, done: Callable[[], bool], commit: Callable[[], None]) -> None:
        """Return once `done`; where nobody leads, call `commit`, whose errors reach its leader.

        Followers of a failed commit find `done` false, or raising, and one of them leads the next.
        """
        leader = False
        try:
            with self._news.lock:
                while not done():
                    if not self._leading:
                        leader = self._leading = True
                        break
                    self._followers += 1
                    self._news.wait()
                else:
                    return
            self._gather()
            started = time.perf_counter()
            commit()
            self._commit_seconds = time.perf_counter() - started
        finally:
            if leader:
                try:
                    self._step_down()
                except BaseException:
                    # Ctrl-C, which can strike while others hold the lock: without a next leader all would wait for ever.
                    self._step_down()
                    raise

    def _step_down(self) -> None:
        with self._news.lock:
            self._leading = False
            self._expected, self._followers = self._followers, 0
            self._news.notify_all()

    def _gather(self) -> None:
        if not self._expected:
            return
        deadline = time.perf_counter() + min(self._commit_seconds, _GATHER_SECONDS_MAX)
        while self._followers < self._expected and time.perf_counter() < deadline:
            time.sleep(_GATHER_STEP_SECONDS)
