"""`WatchedWork`: the work of passes, which reports its progress to the daemon's health."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

from ..errors import ColdStorageError, TieredError
from ..policies.actions import Action
from ..policies.executor import TierReport
from ..survey.lag import Lag
from ..tiering.pass_loop import PassWork
from ..tiering.reports import TableReport, TailReport, locked_out
from .health import Health


class WatchedWork:
    """Delegates to `work`, and reports progress and the answers of the bucket to `health`."""

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
                now, leave_out=leave_out, should_stop=_with_progress(progress, should_stop)
            )
        self._health.set_vain("full", locked_out(report))
        # A full pass has read the head of every partition.
        self._check_bucket(problems, report, read_heads=True)
        return report, problems

    def tail_pass(
        self,
        wanted: Callable[[str, int], bool],
        *,
        should_stop: Callable[[], bool],
        wait_seconds: float | None,
    ) -> TailReport:
        """See `Tierer.tail_pass`."""
        # Tails that still run at the end of a pass must make progress, too: the next pass continues the same wait.
        busy = self._tails.pop_all()
        if self._progress is None:
            self._progress = busy.enter_context(self._health.busy("tails"))
            busy.callback(self._clear_progress)
        with busy, self._vain("tails"):
            tails = self._work.tail_pass(
                wanted, should_stop=_with_progress(self._progress, should_stop), wait_seconds=wait_seconds
            )
            if tails.under_way:
                self._tails = busy.pop_all()
        self._health.set_vain("tails", locked_out(tails.report))
        self._check_bucket(tails.problems.values(), tails.report, read_heads=False)
        return tails

    def table_pass(self, wanted: Callable[[str], bool], *, should_stop: Callable[[], bool]) -> TableReport:
        """See `Tierer.table_pass`."""
        with self._health.busy("tables") as progress:
            return self._work.table_pass(wanted, should_stop=_with_progress(progress, should_stop))

    @contextmanager
    def _vain(self, kind: str) -> Iterator[None]:
        try:
            yield
        except (TieredError, OSError) as error:
            self._health.set_vain(kind, f"{type(error).__name__}: {error}")
            raise

    def _clear_progress(self) -> None:
        self._progress = None

    def lags(self) -> list[Lag]:
        """See `Tierer.lags`."""
        return self._work.lags()

    def bucket_answers(self) -> bool:
        """Ask the bucket; report the result to `health`."""
        answers = self._work.bucket_answers()
        self._health.set_bucket("" if answers else "the bucket does not answer")
        return answers

    def _check_bucket(self, problems: Iterable[TieredError], report: TierReport, *, read_heads: bool) -> None:
        """Report the state of the bucket; after an error of the bucket, ask whether it answers at all."""
        name = ColdStorageError.__name__
        failed = any(isinstance(item, ColdStorageError) for item in problems)
        if failed or any(text.startswith(name) for _, text in report.failed):
            self.bucket_answers()
        elif read_heads or any(action.publishes for action, _ in report.done):
            self._health.set_bucket("")


def _with_progress(progress: Callable[[], None], should_stop: Callable[[], bool]) -> Callable[[], bool]:
    """Return `should_stop` with a report of progress, as passes call it before each action."""

    def should_stop_now() -> bool:
        progress()
        return should_stop()

    return should_stop_now
