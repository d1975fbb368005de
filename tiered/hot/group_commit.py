"""Group commit: one thread, the leader, writes and syncs for all threads that wait, its followers."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..base.condition import InterruptSafeCondition

_GATHER_SECONDS_MAX = 0.002
_GATHER_STEP_SECONDS = 0.00002


class GroupCommit:
    """Runs one commit at a time, in the first thread that waits; threads that come during a commit follow the next one.

    The threads that a commit wakes share the interpreter and run one after another. The first to append again would
    lead a commit of one record, and so would the next. So a leader first waits until as many followers have joined as
    the last commit woke, for as long as that commit took, at most 2 ms. A thread that is alone never waits.
    """

    def __init__(self) -> None:
        self._condition = InterruptSafeCondition()
        self._leading = False
        self._followers = 0
        self._expected = 0
        self._commit_seconds = 0.0

    def run(self, done: Callable[[], bool], commit: Callable[[], None]) -> None:
        """Return once `done` returns true; become the leader and call `commit` if there is no leader.

        The leader raises the errors of `commit`. After a failed commit, `done` returns false or raises for its
        followers, and one of them leads the next.
        """
        leader = False
        try:
            with self._condition.lock:
                while not done():
                    if not self._leading:
                        leader = self._leading = True
                        break
                    self._followers += 1
                    self._condition.wait()
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
                    # Ctrl-C while another thread held the lock. Without a next leader all would wait for ever.
                    self._step_down()
                    raise

    def _step_down(self) -> None:
        with self._condition.lock:
            self._leading = False
            self._expected, self._followers = self._followers, 0
            self._condition.notify_all()

    def _gather(self) -> None:
        if not self._expected:
            return
        deadline = time.perf_counter() + min(self._commit_seconds, _GATHER_SECONDS_MAX)
        while self._followers < self._expected and time.perf_counter() < deadline:
            time.sleep(_GATHER_STEP_SECONDS)
