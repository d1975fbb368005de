"""Group commit: one thread, the leader, writes and syncs for all threads that wait, its followers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

_GATHER_SECONDS_MAX = 0.002


class GroupCommit:
    """Runs one commit at a time, in the first thread that waits; threads that come during a commit follow the next one.

    The threads that a commit wakes share the interpreter and run one after another. The first to append again would
    lead a commit of one record, and so would the next. So a leader first waits until as many followers have joined as
    the last commit woke, for as long as that commit took, at most 2 ms. A thread that is alone never waits.

    Each follower waits for a lock of its own. With a condition, each would take the common lock again once it is woken,
    which is one more switch of threads a record.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._leading = False
        self._followers: list[threading.Lock] = []
        self._expected = 0
        self._all_joined: threading.Lock | None = None
        self._commit_seconds = 0.0

    def run(self, done: Callable[[], bool], commit: Callable[[], None]) -> None:
        """Return once `done` returns true; become the leader and call `commit` if there is no leader.

        The leader raises the errors of `commit`. After a failed commit, `done` returns false or raises for its
        followers, and one of them leads the next.
        """
        leader = False
        try:
            while not done():
                with self._lock:
                    if done():
                        return
                    if not self._leading:
                        leader = self._leading = True
                        break
                    woken = self._join()
                woken.acquire()
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

    def _join(self) -> threading.Lock:
        """Return a lock that the leader releases after its commit. The caller holds the common lock."""
        woken = threading.Lock()
        woken.acquire()
        self._followers.append(woken)
        if self._all_joined is not None and len(self._followers) >= self._expected:
            _release(self._all_joined)
        return woken

    def _gather(self) -> None:
        if not self._expected:
            return
        all_joined = threading.Lock()
        all_joined.acquire()
        with self._lock:
            if len(self._followers) >= self._expected:
                return
            self._all_joined = all_joined
        all_joined.acquire(timeout=min(self._commit_seconds, _GATHER_SECONDS_MAX))

    def _step_down(self) -> None:
        with self._lock:
            self._leading, self._all_joined = False, None
            self._expected = len(self._followers)
            for woken in self._followers:
                _release(woken)
            self._followers.clear()


def _release(lock: threading.Lock) -> None:
    if lock.locked():  # else a call that Ctrl-C interrupted has released it
        lock.release()
