"""Retention waits for the consumers that it names, up to its bound; `delete_before` does not."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import tiered
from tests.support.clock import Clock
from tests.support.stores import open_store
from tiered.cli.app import app
from tiered.engine.host import Host
from tiered.errors import ConfigError, CorruptionError
from tiered.monitor.explain import explain_topic
from tiered.policies.policy import Retention
from tiered.transactions.log_topic import LogTopic
from tiered.warm import segment_reader
from tiered.warm.filesystem import sync_data

HOUR, MINUTE = 3_600_000_000, 60_000_000
RETENTION = {"age": "1h", "unless_behind": ["billing"], "unless_behind_max": "10h"}


def settings(**retention: Any) -> tiered.Settings:
    rules = {
        "roll": {"age": "off"},
        "offload": {"after": 0},
        "merge": "off",
        "retention": {**RETENTION, **retention},
    }
    return tiered.Settings.model_validate({"policies": {"default": rules}, "sweep": {"every": "off"}})


@pytest.fixture(params=["disk", "bucket"])
def cold(request: pytest.FixtureRequest, tmp_path: Path) -> str | None:
    return None if request.param == "disk" else f"file://{tmp_path}/bucket"


def filled(path: Path, cold: str | None, clock: Clock, **retention: Any) -> tiered.Store:
    """Three sealed segments of ten records, and an active one."""
    store = open_store(path, cold, clock, settings=settings(**retention))
    topic = store.create_topic("orders")
    for _ in range(3):
        topic.append_many([b"x"] * 10)
        topic.roll()
    topic.append_many([b"x"] * 10)
    topic.flush()
    return store


def read_to(store: tiered.Store, name: str, offset: int) -> None:
    with store.topic("orders").consumer(name) as consumer:
        consumer.commit({0: offset})


def start(store: tiered.Store) -> int:
    return store.topic("orders").offsets()[0].start


def passes(store: tiered.Store, clock: Clock, ahead_us: int = 0) -> None:
    clock.advance((ahead_us) / 1e6)
    for _ in range(3):
        store.tier()


def test_only_segments_that_the_consumer_has_read_expire(
    tmp_path: Path, clock: Clock, cold: str | None
) -> None:
    with filled(tmp_path / "data", cold, clock) as store:
        passes(store, clock, 2 * HOUR)
        assert start(store) == 0
        for position, expected in [(9, 0), (10, 10), (19, 10), (30, 30)]:
            read_to(store, "billing", position)
            passes(store, clock)
            assert start(store) == expected


def test_a_name_without_a_consumer_counts_as_behind_up_to_the_bound(
    tmp_path: Path, clock: Clock, cold: str | None
) -> None:
    with filled(tmp_path / "data", cold, clock) as store:
        read_to(store, "another", 40)
        passes(store, clock, 10 * HOUR - MINUTE)
        assert start(store) == 0
        clock.advance((MINUTE) / 1e6)
        [expire] = [action for action in store.plan().actions if action.kind == "expire"]
        assert expire.reason.endswith("though billing has not read it")
        passes(store, clock)
        assert start(store) >= 30


def test_bytes_wait_too_and_every_named_consumer_counts(tmp_path: Path, clock: Clock) -> None:
    rules = {"age": "off", "bytes": 1, "unless_behind": ["billing", "audit"]}
    with filled(tmp_path / "data", None, clock, **rules) as store:
        read_to(store, "billing", 30)
        passes(store, clock, MINUTE)
        assert start(store) == 0
        read_to(store, "audit", 20)
        passes(store, clock)
        assert start(store) == 20


def test_delete_before_does_not_wait(tmp_path: Path, clock: Clock) -> None:
    with filled(tmp_path / "data", None, clock) as store:
        read_to(store, "billing", 5)
        store.topic("orders").delete_before(20)
        assert start(store) == 20


def test_plan_explain_and_status_say_what_stays_and_why(tmp_path: Path, clock: Clock) -> None:
    with filled(tmp_path / "data", None, clock) as store:
        read_to(store, "billing", 15)
        clock.advance((2 * HOUR) / 1e6)
        line = (
            "orders/0: [10, 30) expire after they are read: consumer billing is at 15 "
            "(retention.unless_behind, at most 10h)"
        )
        assert store.plan().waiting == (line,)
        assert store.plan().to_json()["waiting"] == [line]
        assert store.status().waiting == (line,)
        [part] = explain_topic(store.watched(), "orders").partitions
        assert line in part.notes
        first, second = part.pieces[:2]
        assert first.next is not None
        assert (first.next.kind, first.next.due_us) == ("expire", clock())
        expiry = [step for step in (second.next, *second.then) if step is not None and step.kind == "expire"]
        assert [step.why for step in expiry] == ["retention.unless_behind_max 10h"]
        assert expiry[0].due_us == second.last_append_us + 10 * HOUR
        simulated = store.tierer.planner.simulate((clock() + 9 * HOUR) // 1000)
        assert [action.end_offset for _, action in simulated.steps if action.kind == "expire"][-1] >= 30


def test_a_daemon_beside_the_writer_reads_the_positions_and_syncs_them_first(
    tmp_path: Path, clock: Clock, cold: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[str] = []

    def sync(fd: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{fd}").readlink()))
        sync_data(fd)

    with filled(tmp_path / "data", cold, clock) as store:
        passes(store, clock)
        read_to(store, "billing", 20)
        store.flush()
        clock.advance((2 * HOUR) / 1e6)
        monkeypatch.setattr(segment_reader, "sync_data", sync)
        with tiered.open(
            tmp_path / "data", cold=cold, settings=settings(), tierer=True, host=Host(clock=clock)
        ) as daemon:
            plan = daemon.tierer.planner.plan_pass(None, [])
        [expire] = [action for action in plan.actions if action.kind == "expire" and action.topic == "orders"]
        assert expire.end_offset == 20
        assert any("__transactions" in path for path in synced), "a power cut may take the commit back"


def test_a_topic_created_again_does_not_have_the_old_positions(tmp_path: Path, clock: Clock) -> None:
    with filled(tmp_path / "data", None, clock) as store:
        read_to(store, "billing", 40)
        store.delete_topic("orders")
        topic = store.create_topic("orders")
        topic.append_many([b"x"] * 10)
        topic.roll()
        passes(store, clock, 2 * HOUR)
        assert start(store) == 0


def test_positions_that_cannot_be_read_hold_records_and_are_reported(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with filled(tmp_path / "data", None, clock) as store:
        read_to(store, "billing", 40)
        clock.advance((2 * HOUR) / 1e6)

        def damaged(_: LogTopic) -> Any:
            raise CorruptionError("a record of the transaction log is none", where="log")

        monkeypatch.setattr(LogTopic, "current", damaged)
        report, problems = store.tierer.full_pass()
        assert start(store) == 0
        assert not report.failed
        assert [type(problem) for problem in problems] == [CorruptionError]
        assert "cannot be read" in store.plan().waiting[0]


def test_retention_without_names_reads_no_positions(
    tmp_path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open_store(tmp_path / "data", None, clock) as store:
        store.create_topic("orders").append(b"x", sync=True)
        monkeypatch.setattr(LogTopic, "current", None)
        store.tier()


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"unless_behind": ["a"], "age": timedelta(hours=1)}, "unless_behind needs a bound"),
        ({"unless_behind": ["a"], "unless_behind_max": "1d"}, "no effect without a limit"),
        ({"unless_behind_max": "1d", "age": "1h"}, "no effect without consumers"),
        ({**RETENTION, "unless_behind_max": "1h"}, "is not longer than age"),
        ({**RETENTION, "unless_behind": [""]}, "at least 1 character"),
    ],
)
def test_a_rule_without_effect_or_bound_is_refused(rule: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tiered.Settings.model_validate({"policies": {"default": {"retention": rule}}})


def test_off_needs_no_consumers() -> None:
    assert Retention.model_validate("off").unless_behind == ()


def test_config_check_warns_of_names_that_no_consumer_has(tmp_path: Path, clock: Clock) -> None:
    data, file = tmp_path / "data", tmp_path / "tiered.toml"
    file.write_text(
        f'[store]\npath = "{data}"\n[policies."orders*"]\n'
        'retention = { age = "1h", unless_behind = ["billing", "audit"], unless_behind_max = "10h" }\n'
    )

    def warnings() -> str:
        result = CliRunner().invoke(app, ["config", "check", "--config", str(file)])
        assert result.exit_code == 0, result.output
        return result.output

    assert "cannot be checked" in warnings()
    with filled(data, None, clock) as store:
        read_to(store, "billing", 5)
    text = " ".join(warnings().split())
    assert "no consumer audit has a position, so that all records stay until unless_behind_max 10h" in text
    assert "consumer billing" not in text
