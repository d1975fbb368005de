"""The daemon: opens the store beside its writer, runs passes, handles signals, outlives errors (promise P11).

::

    waiting ──▶ running ──▶ stopping ──▶ exit code 0
       │ ▲         │             ▲        a second signal exits at once with 128 and its number
       │ └─────────┘ the store was removed or replaced
       └──── SIGTERM, SIGINT ────┘
"""

from __future__ import annotations

import logging
import os
import queue
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

from ..base.backoff import Backoff
from ..base.units import format_duration
from ..cold.object_store.throttle import Throttle
from ..errors import ConfigError, StoreLocked, TieredError, UnsupportedFormat
from ..monitor.http import Views, Web, read_token
from ..monitor.iceberg_catalog import IcebergCatalog
from ..monitor.metrics import exposition, registry_for
from ..monitor.status_page import page, page_state
from ..opening import open_local_store
from ..policies.policy import Policy
from ..settings.schedule import first_pass_seconds, pass_schedule
from ..settings.settings import Settings
from ..store.local_store import LocalStore
from ..tiering.pass_loop import PassLoop
from ..warm.catalog import STORE_FILE
from ..warm.file_lock import FileLock
from .health import Health
from .logs import log_outcome
from .notify import Notifier
from .pass_watch import WatchedWork
from .reload import check_can_change

log = logging.getLogger("tiered.daemon")

DAEMON_LOCK = "daemon.lock"
DEFAULT_ADDRESS = "127.0.0.1:9464"
_TICK_SECONDS = 1.0
_STATUS_SECONDS = 10.0
_CLOCK_STEP_SECONDS = 1.0
_T = TypeVar("_T")
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class _StoreMissing(TieredError):
    """There is no store at the path yet."""


class Daemon:
    """One daemon for one store.

    Parameters
    ----------
    load
        Reads the settings; called again at SIGHUP.
    settings
        The settings, if the caller has read them already.
    notifier
        Reports to the service manager.
    clock
        Returns microseconds since the epoch.
    """

    def __init__(
        self,
        load: Callable[[], Settings],
        *,
        settings: Settings | None = None,
        notifier: Notifier | None = None,
        clock: Callable[[], int] = lambda: time.time_ns() // 1000,
    ) -> None:
        self._load = load
        self._notify = notifier or Notifier()
        self._clock = clock
        self._settings = settings or load()
        self._health = Health(self._settings.daemon.stuck_after.total_seconds())
        # A signal handler may call `put` at any time; with an Event it could deadlock on the Event's lock.
        self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._ending = False
        self._store: LocalStore | None = None
        self._passes: PassLoop | None = None
        self._registry: Any = None
        self._no_metrics: ConfigError | None = None
        self._web: Web | None = None
        self._lock_identity = (0, 0)
        self._status_due = 0.0
        self._clock_drift = 0.0

    # -- life ------------------------------------------------------------------------------------

    def run(self) -> int:
        """Run until SIGTERM or SIGINT; return the exit code.

        Raises
        ------
        ConfigError, UnsupportedFormat
            The daemon cannot start, and waiting would not help.
        """
        with self._handle_signals():
            self._web = self._listen()
            try:
                # Ready before the store exists: the daemon may start before the writer.
                self._notify.ready()
                while not self._ending:
                    with self._only_daemon() as has_lock:
                        if has_lock:
                            self._run_passes()
                return 0
            finally:
                if self._web is not None:
                    self._web.close()

    def _run_passes(self) -> None:
        """Open the store and run passes until a signal."""
        store = self._open_store()
        if store is None:
            return
        self._store = store
        store.tierer.executors.observe = log_outcome
        daemon = self._settings.daemon
        work = WatchedWork(store.tierer, self._health)
        if store.context.tiers.has_cold:
            work.bucket_answers()
        self._passes = PassLoop(
            work,
            store.topics,
            self._policy,
            schedule=pass_schedule(daemon, self._clock),
            clock=self._clock,
            first_seconds=first_pass_seconds(daemon),
        )
        try:
            self._registry = registry_for(store.watched(self._passes))
        except ConfigError as error:
            log.warning("%s", error)
            self._no_metrics = error
        self._clock_drift = self._drift()
        self._passes.start()
        self._health.set_unready("")
        when = daemon.cron or f"every {format_duration(daemon.interval)}"
        log.info(
            "tiering %s to %s, %s", store.url, store.context.tiers.locations.cold_url or "no bucket", when
        )
        while self._is_same_store() and not self._wait_for_signal(_TICK_SECONDS):
            self._tick()
        self._stop(store, self._passes)
        self._store = self._passes = self._registry = None

    def _policy(self, topic: str) -> Policy:
        return self._settings.policy_for(topic)  # from the newest settings after a reload

    def _stop(self, store: LocalStore, passes: PassLoop) -> None:
        """Wait for the running actions until the deadline, then abandon them, which is always safe (promise P6)."""
        if not self._ending:
            log.warning("the store at %s is gone, or another one is in its place", store.url)
        deadline = self._settings.daemon.stop_deadline.total_seconds()
        log.info("stopping: running actions have %g s to end", deadline)
        if passes.stop(deadline):
            store.close()
            log.info("stopped")
            return
        running = (
            ", ".join(str(action) for action, _ in store.tierer.executors.running.now())
            or "a survey of the store"
        )
        log.warning("stopped by the deadline, leaving behind: %s", running)
        logging.shutdown()
        # A normal exit would wait for the threads of the executor.
        os._exit(0 if self._ending else 1)

    # -- before passes can run -------------------------------------------------------------------

    @contextmanager
    def _only_daemon(self) -> Iterator[bool]:
        """Wait until the store exists and take the daemon's lock; yield False if a signal ends the wait."""
        path = Path(self._settings.store.path).absolute()
        if "://" in self._settings.store.path:
            raise ConfigError("store.path: a daemon needs the local store, not the URL of a bucket")

        def lock() -> FileLock:
            if not (path / STORE_FILE).is_file():
                raise _StoreMissing(f"there is no store at {path} yet; its writer makes one")
            return FileLock.acquire(path / DAEMON_LOCK, f"the daemon of the store {path}", nameless=True)

        daemon_lock = self._retry(lock)
        try:
            self._lock_identity = (0, 0)
            with suppress(OSError):  # the store was removed again: `_is_same_store` is false
                self._lock_identity = _identity(path / DAEMON_LOCK)
            yield daemon_lock is not None
        finally:
            if daemon_lock is not None:
                daemon_lock.release()

    def _is_same_store(self) -> bool:
        """Whether the store at the path is still the one whose lock this daemon holds."""
        try:
            return self._lock_identity == _identity(Path(self._settings.store.path).absolute() / DAEMON_LOCK)
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError:
            return True  # unreadable is not absent; the passes report the error (promise P10)

    def _open_store(self) -> LocalStore | None:
        return self._retry(
            lambda: open_local_store(self._settings.store.path, settings=self._settings, tierer=True)
        )

    def _retry(self, work: Callable[[], _T]) -> _T | None:
        """Try until `work` succeeds and return its result; return None after a signal."""
        backoff = Backoff(lambda: 1.0, 5.0)
        while True:
            try:
                return work()
            except (ConfigError, UnsupportedFormat):
                raise
            except (TieredError, OSError) as error:
                self._report_waiting(error)
                backoff.fail("", time.monotonic())
            while (left := backoff.until("") - time.monotonic()) > 0:
                if self._wait_for_signal(min(left, _TICK_SECONDS)):
                    return None
                self._heartbeat([])

    def _report_waiting(self, error: Exception) -> None:
        text = f"waiting: {error}"
        if isinstance(error, StoreLocked):
            text = f"waiting, ready to take over: {error}"
        self._health.set_unready(text)
        self._notify.status(text)
        log.warning("%s", text)

    # -- while they run --------------------------------------------------------------------------

    def _tick(self) -> None:
        assert self._store is not None
        assert self._passes is not None
        self._heartbeat(self._passes.dead_threads())
        drift = self._drift()
        if abs(drift - self._clock_drift) > _CLOCK_STEP_SECONDS:
            self._clock_drift = drift
            if self._settings.daemon.cron is not None:
                # The clock was set, or the machine slept: the passes wait by the monotonic clock.
                self._passes.reschedule(pass_schedule(self._settings.daemon, self._clock))
        now = time.monotonic()
        if now >= self._status_due:
            self._status_due = now + _STATUS_SECONDS
            self._notify.status(self._summary(self._passes))

    def _heartbeat(self, dead_threads: list[str]) -> None:
        """Report a sign of life of the main loop to health, and to the watchdog if the daemon is healthy."""
        traffic: object = None
        if self._store is not None and self._store.context.tiers.has_cold:
            # Requests are counted when they begin. With a low limit one part takes long, so bytes count, too.
            counts = getattr(self._store.context.tiers.object_store, "counts", None)
            traffic = f"{counts!r} {Throttle.bytes_taken()}"
        self._health.heartbeat(dead_threads, str(traffic))
        if not self._health.problems():
            self._notify.alive()

    def _drift(self) -> float:
        return self._clock() / 1e6 - time.monotonic()

    def _summary(self, passes: PassLoop) -> str:
        unready = self._health.unready()
        if unready:
            return "; ".join(unready)
        state = passes.state()
        lag = (
            f"{state.lag_records} records behind, {state.lag_seconds:.0f} s"
            if state.lag_records
            else "up to date"
        )
        return f"{state.full.passes} passes; bucket {lag}"

    # -- signals ---------------------------------------------------------------------------------

    @contextmanager
    def _handle_signals(self) -> Iterator[None]:
        before = {number: signal.signal(number, self._on_signal) for number in _SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        if self._ending and number != signal.SIGHUP:
            os._exit(128 + number)
        self._signals.put(number)

    def _wait_for_signal(self, seconds: float) -> bool:
        """Wait up to `seconds` for a signal; return whether one ends the daemon."""
        if self._notify.watchdog_seconds is not None:
            seconds = min(seconds, self._notify.watchdog_seconds / 3)
        try:
            number = self._signals.get(timeout=seconds)
        except queue.Empty:
            return False
        if number == signal.SIGHUP:
            self._reload()
            return False
        self._ending = True
        log.info("%s", signal.Signals(number).name)
        self._health.set_unready("stopping")
        self._notify.stopping()
        return True

    def _reload(self) -> None:
        self._notify.reloading()
        try:
            new = self._load()
            check_can_change(self._settings, new)
            token = read_token(new.daemon.token_file)
            if self._web is not None:
                self._web.check_token(token)
            if self._store is not None:
                self._store.apply_settings(new)
        except (TieredError, OSError) as error:
            log.error("the configuration stays as it was: %s", error)  # noqa: TRY400 (a line, no traceback)
        else:
            before, self._settings = self._settings.daemon, new
            self._health.stuck_seconds = new.daemon.stuck_after.total_seconds()
            if self._web is not None:
                self._web.set_token(token)
            # Only after a change, because it restarts the wait for the next pass.
            if self._passes is not None and (before.cron, before.interval, before.jitter) != (
                new.daemon.cron, new.daemon.interval, new.daemon.jitter,
            ):  # fmt: skip
                self._passes.reschedule(pass_schedule(new.daemon, self._clock))
            log.info("the configuration was read again")
        self._notify.ready()

    # -- HTTP ------------------------------------------------------------------------------------

    def _listen(self) -> Web | None:
        address = self._settings.daemon.metrics
        if address == "off":
            return None
        token = read_token(self._settings.daemon.token_file)
        views = Views(
            self._health.problems, self._health.unready, self._metrics, page, self._page_state, self._catalog
        )
        try:
            web = Web.open(address or DEFAULT_ADDRESS, views, token)
        except ConfigError as error:
            if address is not None:
                raise
            # The default address may belong to the daemon of another store on this host; that is no error.
            log.warning("no health and metrics over HTTP: %s", error)
            return None
        log.info("http://%s answers /healthz, /readyz, /metrics and /iceberg", web.address)
        return web

    def _catalog(self) -> IcebergCatalog | None:
        store = self._store
        return None if store is None else IcebergCatalog(store.context, store.open_topics)

    def _metrics(self) -> tuple[bytes, str] | None:
        if self._no_metrics is not None:
            raise self._no_metrics
        return None if self._registry is None else exposition(self._registry)

    def _page_state(self) -> dict[str, Any] | None:
        if self._store is None or self._passes is None:
            return None
        return page_state(self._store.watched(self._passes))


def _identity(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino
