"""The parts of the daemon that need no process: schedules, words for systemd, log lines, health, reloads."""

from __future__ import annotations

import io
import json
import logging
import socket
import threading
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiered
from tests.support.clock import Clock
from tiered.cold.object_store.throttle import PacedBody, Throttle
from tiered.daemon.health import Health
from tiered.daemon.logs import Repeats, log_outcome, set_up_logging, take_down_logging
from tiered.daemon.notify import Notifier
from tiered.daemon.reload import check_can_change
from tiered.daemon.service import Daemon
from tiered.monitor.http import read_token
from tiered.policies.actions import WHOLE_STORE, Offload, Sweep
from tiered.policies.executor import Outcome
from tiered.settings.schedule import first_pass_seconds, pass_schedule
from tiered.settings.sections import DaemonSettings
from tiered.warm.bucket_binding import COLD_FILE


def us(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1_000_000)


@pytest.mark.parametrize(
    ("line", "now", "following"),
    [
        ("*/5 * * * *", "2027-01-31T12:00:00Z", "2027-01-31T12:05:00Z"),
        ("*/5 * * * *", "2027-01-31T11:59:59.5Z", "2027-01-31T12:00:00Z"),
        ("0 3 * * *", "2027-03-28T02:59:00Z", "2027-03-28T03:00:00Z"),  # no hour is left out in UTC
        ("30 1 * * SUN", "2027-10-31T01:30:00Z", "2027-11-07T01:30:00Z"),  # nor comes twice
        ("0 0 29 2 *", "2027-01-31T12:00:00Z", "2028-02-29T00:00:00Z"),
        ("0 0 1 1 *", "2027-12-31T23:59:59.999999Z", "2028-01-01T00:00:00Z"),
    ],
)
def test_a_cron_line_names_the_next_pass(line: str, now: str, following: str) -> None:
    for jitter, draw, late in ((None, 0.9, 0.0), ("40s", 0.5, 20.0)):
        daemon = DaemonSettings.model_validate({"cron": line, "jitter": jitter})
        seconds = pass_schedule(daemon, lambda: us(now), lambda draw=draw: draw)()  # type: ignore[misc]
        assert seconds == pytest.approx((us(following) - us(now)) / 1e6 + late, abs=1e-6)
    assert first_pass_seconds(daemon) == float("inf"), (
        "a pass at once, at noon, is not what a line for the night means"
    )


def test_passes_of_a_cron_line_never_come_twice_for_one_time(clock: Clock) -> None:
    schedule = pass_schedule(DaemonSettings(cron="* * * * *"), clock)
    times = []
    for _ in range(5):
        clock.advance(schedule())
        times.append(clock())
    assert {later - earlier for earlier, later in pairwise(times)} == {60_000_000}


@pytest.mark.parametrize(
    ("jitter", "least", "most"), [(None, 9.0, 11.0), ("5s", 5.0, 15.0), ("0s", 10.0, 10.0)]
)
def test_an_interval_has_its_jitter(jitter: str | None, least: float, most: float) -> None:
    daemon = DaemonSettings.model_validate({"interval": "10s", "jitter": jitter})
    found = [pass_schedule(daemon, lambda: 0, lambda draw=draw: draw)() for draw in (0.0, 0.5, 1.0)]  # type: ignore[misc]
    assert found == pytest.approx([least, 10.0, most])
    assert first_pass_seconds(daemon) <= 1


@pytest.mark.parametrize(
    ("table", "said"),
    [
        ({"cron": "* * * *"}, "five cron fields"),
        ({"cron": "* * * * * *"}, "five cron fields"),
        ({"cron": "61 * * * *"}, "Bad minute"),
        ({"cron": "0 0 30 2 *"}, "no cron line|never comes"),
        ({"interval": "1s", "jitter": "2s"}, "jitter is at most"),
        ({"metrics": "nowhere"}, "not an address"),
    ],
)
def test_a_daemon_table_that_cannot_be_meant_is_refused(table: dict[str, Any], said: str) -> None:
    with pytest.raises(tiered.ConfigError, match=said):
        tiered.Settings.model_validate({"daemon": table})


# -- systemd ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told_what_it_asks_for(tmp_path: Path, abstract: bool) -> None:
    """Over a socket with a path or an abstract one; the watchdog is patted only where one watches."""
    name = f"@tiered-{tmp_path}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name[1:] if abstract else name)
        manager.settimeout(5)
        notify = Notifier.of({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "30000000"})
        assert notify.watchdog_seconds == 30
        notify.ready()
        notify.alive()
        for text in ("one\nline", "one\nline", "two"):
            notify.status(text)
        notify.reloading()
        notify.stopping()
        found = [manager.recv(1000).decode() for _ in range(6)]
        assert found[:4] == ["READY=1", "WATCHDOG=1", "STATUS=one line", "STATUS=two"]
        assert found[4].startswith("RELOADING=1\nMONOTONIC_USEC=")
        assert found[5] == "STOPPING=1"
        Notifier(name).alive()  # nobody watches
        Notifier(str(tmp_path / "nobody")).ready()  # nobody listens
        manager.settimeout(0.01)
        with pytest.raises(TimeoutError):
            manager.recv(1000)
    assert Notifier.of({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}).watchdog_seconds is None


def test_a_slow_systemd_misses_a_pat_but_no_state(tmp_path: Path) -> None:
    """The system keeps some ten messages for it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(10)
        notify = Notifier(str(tmp_path / "notify"), 1.0)
        for _ in range(1000):
            notify.alive()
        telling = threading.Thread(target=notify.ready)
        telling.start()
        telling.join(0.1)  # it has nowhere to put it yet
        while manager.recv(1000) != b"READY=1":
            pass
        telling.join()


# -- log -------------------------------------------------------------------------------------------


def offload(**values: Any) -> Offload:
    known: dict[str, Any] = {"topic": "orders", "partition": 3, "segment_id": None, "base_offset": 100,
                             "end_offset": 200, "bytes": 2048, "reason": "age 1h >= offload.after 10m"}  # fmt: skip
    return Offload(**{**known, **values})


SWEEP = Sweep(topic=WHOLE_STORE[0], partition=WHOLE_STORE[1], segment_id=None, base_offset=0, end_offset=0, bytes=0,
              reason="a day since the last", planned_us=0)  # fmt: skip
OUTCOMES = [
    Outcome(offload(), "done", 2048, 0.5),
    Outcome(offload(), "failed", 0, 0.25, "ColdStorageError: no\nroute"),
    Outcome(offload(), "skipped", message="stopping"),
    Outcome(SWEEP, "done", 0, 1.0),
]


@pytest.fixture
def lines(request: pytest.FixtureRequest) -> Any:
    """What was logged so far, as lines."""
    stream = io.StringIO()
    level = logging.getLogger("tiered").level
    set_up_logging(request.param, stream)
    handler = set_up_logging(request.param, stream)
    yield lambda: stream.getvalue().splitlines()
    take_down_logging(handler)
    assert logging.getLogger("tiered").level == level


@pytest.mark.parametrize("lines", ["human"], indirect=True)
def test_an_action_is_one_line_for_people(lines: Any) -> None:
    for outcome in OUTCOMES:
        log_outcome(outcome)
    logging.getLogger("tiered.passes").warning("%s pass: %s", "full", OUTCOMES[1].message)  # the same news
    logging.getLogger("tiered.policies.executor").warning(
        "%s failed: %s", OUTCOMES[1].action, "the same news"
    )
    try:
        raise ValueError("a\nbug")
    except ValueError:
        logging.getLogger("tiered.passes").exception("%s pass", "full")
    found = [line.partition(" ")[2] for line in lines()]
    assert found[:4] == [
        "info offload orders/3 [100, 200) done: 2KiB in 0.50 s (age 1h >= offload.after 10m)",
        "warning offload orders/3 [100, 200) failed: ColdStorageError: no route (age 1h >= offload.after 10m)",
        "info offload orders/3 [100, 200) skipped: stopping (age 1h >= offload.after 10m)",
        "info sweep done: 0B in 1.00 s (a day since the last)",
    ]
    assert found[4].startswith("error full pass: ValueError: a bug at ")
    assert len(found) == 5


@pytest.mark.parametrize("lines", ["json"], indirect=True)
def test_an_action_is_one_json_object(lines: Any) -> None:
    for outcome in OUTCOMES:
        log_outcome(outcome)
    found = [json.loads(line) for line in lines()]
    assert [item["outcome"] for item in found] == ["done", "failed", "skipped", "done"]
    first = {name: found[0][name] for name in found[0] if name not in ("time", "message", "logger")}
    assert first == {
        "level": "info", "action": "offload", "topic": "orders", "partition": 3, "base_offset": 100,
        "end_offset": 200, "bytes": 2048, "seconds": 0.5, "reason": "age 1h >= offload.after 10m", "outcome": "done",
    }  # fmt: skip
    assert found[1]["error"] == "ColdStorageError: no\nroute"
    assert found[3]["topic"] is None
    assert datetime.fromisoformat(found[0]["time"]).utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - datetime.fromisoformat(found[0]["time"])) < timedelta(minutes=5)


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 120)), max_size=60))
def test_a_warning_that_repeats_is_said_seldom_and_never_lost(events: list[tuple[int, int]]) -> None:
    """Each is said at once where it was not said for a minute, and what was held back is counted."""
    now = 0
    repeats = Repeats(60, lambda: now)
    said: dict[int, int] = {}
    held: dict[int, int] = {}
    for kind, passed in events:
        now += passed
        record = logging.LogRecord("tiered.x", logging.WARNING, "", 0, "%s", (kind,), None)
        due = kind not in said or now - said[kind] >= 60
        assert repeats.filter(record) == due
        if due:
            assert getattr(record, "held_back", None) == held.pop(kind, 0)
            said[kind] = now
        else:
            held[kind] = held.get(kind, 0) + 1
        info = logging.LogRecord("tiered.x", logging.INFO, "", 0, "%s", (kind,), None)
        assert repeats.filter(info), "what was done is always said"


def test_an_upload_that_is_tried_again_under_another_name_fails_the_same_way() -> None:
    repeats, name = Repeats(60, lambda: 0), "orders/0/data/{}.parquet: answered 403"
    records = [
        logging.LogRecord("tiered.x", logging.WARNING, "", 0, "%s", (name.format(uuid4()),), None)
        for _ in range(2)
    ]
    records[1].repeats = f"cannot upload {uuid4()}"  # as an action says it
    other = logging.LogRecord("tiered.x", logging.WARNING, "", 0, "", (), None)
    other.repeats = f"cannot upload {uuid4()}"
    assert [repeats.filter(item) for item in (*records, records[0], other)] == [True, True, False, False]


# -- health ----------------------------------------------------------------------------------------


def test_health_knows_slow_from_stuck() -> None:
    """Progress is an action that begins, or any traffic with the bucket; else a pass may hang."""
    now = 0.0
    health = Health(60, lambda: now)
    with health.busy("full") as progress, health.busy("tails"):
        for minute in range(1, 5):  # an upload that takes long: the counters move
            now = minute * 50.0
            health.look([], traffic=minute)
        assert health.problems() == []
        now += 50
        progress()
        health.look([], traffic=4)
        now += 20
        health.look([], traffic=4)
        assert health.problems() == ["tails pass: no progress for 70 s"]
    assert health.problems() == []
    health.look(["tiered-full"], traffic=4)
    assert health.problems() == ["thread tiered-full is gone"]
    health.look([], traffic=4)
    now += 61
    assert health.problems() == ["main loop: no progress for 61 s"]


def test_ready_is_another_question_than_alive() -> None:
    health = Health(60, lambda: 0.0)
    assert health.unready() == ["starting"]
    health.set_unready("")
    health.set_bucket("the bucket does not answer")
    assert (health.unready(), health.problems()) == (["the bucket does not answer"], [])
    health.set_bucket("")
    assert health.unready() == []


# -- reload ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"store": {"path": "./other"}}, "store.path"),
        ({"store": {"sync": "always", "hot_bytes": "1GiB"}}, "store.sync, store.hot_bytes"),
        ({"cold": {"url": "s3://other"}}, "cold.url"),
        ({"daemon": {"metrics": "127.0.0.1:1"}}, "daemon.metrics"),
        ({"daemon": {"interval": "5s", "stop_deadline": "1s", "requests_per_second": 5}}, ""),
        ({"policies": {"default": {"retention": {"age": "9d"}}}, "sweep": {"every": "2d"}}, ""),
    ],
)
def test_what_needs_a_restart_is_refused_by_name(change: dict[str, Any], named: str) -> None:
    old, new = tiered.Settings(), tiered.Settings.model_validate(change)
    if named:
        with pytest.raises(tiered.ConfigError, match=f"^{named} cannot change while the daemon runs"):
            check_can_change(old, new)
    else:
        check_can_change(old, new)


def test_limits_change_under_connections_that_are_open(tmp_path: Path) -> None:
    """Of this bucket and of its next connections, and of no bucket with other limits."""
    place = str(tmp_path)
    settings = [
        tiered.Settings.model_validate({"daemon": {"upload_bytes_per_second": rate}})
        for rate in ("1MiB", "3MiB")
    ]
    held, other = Throttle.shared(place, 1 << 20), Throttle.shared(place, 2 << 20)
    with tiered.open(tmp_path / "data", cold=f"file://{tmp_path}/cold", settings=settings[0]) as store:
        store.use(settings[1])
        assert store.context.tiers.locations.cold_options.upload_bytes_per_second == 3 << 20
    assert held.bytes is not None
    assert other.bytes is not None
    assert (held.bytes._per_second, other.bytes._per_second) == (3 << 20, 2 << 20)
    assert Throttle.shared(place, 3 << 20) is held


def test_a_reload_that_fails_changes_nothing_and_ends_nothing(tmp_path: Path) -> None:
    """Whatever cannot be read: the file, or what the store remembers of its bucket (promise P11)."""
    before, after = (
        tiered.Settings.model_validate({"daemon": {"upload_bytes_per_second": rate}})
        for rate in ("1MiB", "3MiB")
    )

    def unreadable() -> tiered.Settings:
        raise PermissionError(13, "Permission denied")

    for load in (unreadable, lambda: after):
        daemon = Daemon(load, settings=before)
        with tiered.open(tmp_path / "data", cold=f"file://{tmp_path}/cold", settings=before) as store:
            places, remembered = store.context.tiers.locations, (tmp_path / "data" / COLD_FILE).read_bytes()
            (tmp_path / "data" / COLD_FILE).write_bytes(b"damaged")
            daemon._store = store
            daemon._reload()
            assert (daemon._settings, store.context.settings, store.context.tiers.locations) == (
                before,
                before,
                places,
            )
            (tmp_path / "data" / COLD_FILE).write_bytes(remembered)


def test_a_token_comes_from_its_file(tmp_path: Path) -> None:
    path = tmp_path / "token"
    for content, said in ((None, "No such file"), (b" \n", "is empty"), (b"\xff", "is no text")):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(tiered.ConfigError, match=said):
            read_token(str(path))
    path.write_text("secret\n")
    assert read_token(str(path)) == "secret"
    assert read_token(None) is None


def test_neither_reloads_nor_clock_steps_put_the_next_pass_off(tmp_path: Path) -> None:
    """Each comes more often than a pass: only another schedule begins the wait anew, and a set clock that of cron."""
    chosen: dict[str, Any] = {"interval": "1h"}
    now_us = 0
    daemon = Daemon(
        lambda: tiered.Settings.model_validate({"daemon": chosen, "store": {"path": str(tmp_path)}}),
        clock=lambda: now_us,
    )
    again: list[object] = []
    daemon._passes = SimpleNamespace(  # type: ignore[assignment]
        reschedule=again.append,
        dead_threads=list,
        state=lambda: SimpleNamespace(lag_records=0, full=SimpleNamespace(passes=1)),
    )
    daemon._store = SimpleNamespace(  # type: ignore[assignment]
        use=lambda _: None, context=SimpleNamespace(tiers=SimpleNamespace(has_cold=False))
    )
    daemon._health.set_unready("")
    daemon._clock_drift = daemon._drift()
    now_us += 3_600_000_000
    daemon._tick()
    daemon._reload()
    assert again == []
    chosen["interval"] = "2h"
    daemon._reload()
    assert len(again) == 1
    del chosen["interval"]
    chosen["cron"] = "0 * * * *"
    daemon._reload()
    now_us -= 3_600_000_000
    daemon._tick()
    assert len(again) == 3


def test_an_upload_that_a_low_limit_slows_down_is_no_pass_that_hangs(tmp_path: Path) -> None:
    """Its parts begin together, and the next request comes when they end: a restart would only begin them anew."""
    daemon = Daemon(lambda: tiered.Settings.model_validate({"store": {"path": str(tmp_path)}}))
    now = 0.0
    daemon._health = Health(60, lambda: now)
    tiers = SimpleNamespace(has_cold=True, object_store=SimpleNamespace(counts="one request"))
    daemon._store = SimpleNamespace(context=SimpleNamespace(tiers=tiers))  # type: ignore[assignment]
    body = Throttle.shared(str(tmp_path), 1 << 20).paced(bytes(1000))
    assert isinstance(body, PacedBody)
    body.begin()
    with daemon._health.busy("full"):
        for _ in range(5):
            now += 50
            body.read(10)
            daemon._look([])
        assert daemon._health.problems() == []
        now += 61
        daemon._look([])
        assert daemon._health.problems() == ["full pass: no progress for 61 s"]
