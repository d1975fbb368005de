"""The store's tierer as `PassLoop` drives it, with health looking on."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

from ..errors import ColdStorageError, TieredError
from ..policies.actions import Action
from ..policies.executor import TierReport
from ..survey.lag import Lag
from ..tiering.pass_loop import PassWork
from ..tiering.reports import TailReport, locked_out
from .health import Health


class WatchedWork:
    """Does what `work` does, and notes progress and whether the bucket answered."""

    def __init__(self, work: PassWork, health: Health) -> None:
        self._work = work
        self._health = health
        self._tails = ExitStack()
        self._progress: Callable[[], None] | None = None

    def full_pass(
        self, now: object = None, *, leave_out: Callable[[Action], bool], should_stop: Callable[[], bool]
    ) -> tuple[TierReport, list[TieredError]]:
        """See `Tierer.full_pass`."""
        with self._health.busy("full") as progress, self._vain("full"):
            report, problems = self._work.full_pass(
                now, leave_out=leave_out, should_stop=_noting(progress, should_stop)
            )
        self._health.set_vain("full", locked_out(report))
        # A full pass reads the head of every partition.
        self._judge(problems, report, asked=True)
        return report, problems

    def tail_pass(
        self,
        wanted: Callable[[str, int], bool],
        *,
        should_stop: Callable[[], bool],
        wait_seconds: float | None,
    ) -> TailReport:
        """See `Tierer.tail_pass`."""
        # Tails that are under way when it ends must make progress too: the next pass goes on with the same wait.
        busy = self._tails.pop_all()
        if self._progress is None:
            self._progress = busy.enter_context(self._health.busy("tails"))
            busy.callback(self._forget)
        with busy, self._vain("tails"):
            found = self._work.tail_pass(
                wanted, should_stop=_noting(self._progress, should_stop), wait_seconds=wait_seconds
            )
            if found.under_way:
                self._tails = busy.pop_all()
        self._health.set_vain("tails", locked_out(found.report))
        self._judge(found.problems.values(), found.report, asked=False)
        return found

    @contextmanager
    def _vain(self, kind: str) -> Iterator[None]:
        try:
            yield
        except (TieredError, OSError) as error:
            self._health.set_vain(kind, f"{type(error).__name__}: {error}")
            raise

    def _forget(self) -> None:
        self._progress = None

    def lags(self) -> list[Lag]:
        """See `Tierer.lags`."""
        return self._work.lags()

    def bucket_answers(self) -> bool:
        """Ask the bucket, and note what came of it."""
        answers = self._work.bucket_answers()
        self._health.set_bucket("" if answers else "the bucket does not answer")
        return answers

    def _judge(self, problems: Iterable[TieredError], report: TierReport, *, asked: bool) -> None:
        """Where something of the bucket failed, ask whether it was one object's matter or all of it."""
        name = ColdStorageError.__name__
        failed = any(isinstance(item, ColdStorageError) for item in problems)
        if failed or any(text.startswith(name) for _, text in report.failed):
            self.bucket_answers()
        elif asked or any(action.publishes for action, _ in report.done):
            self._health.set_bucket("")


def _noting(progress: Callable[[], None], should_stop: Callable[[], bool]) -> Callable[[], bool]:
    """Return `should_stop`, which is asked before each action and so tells of progress."""

    def asked() -> bool:
        progress()
        return should_stop()

    return asked
