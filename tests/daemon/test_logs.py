"""Lines of the log, for people and for programs."""

from __future__ import annotations

import io
import json
import logging
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiered.daemon.logs import RepeatFilter, log_outcome, set_up_logging, take_down_logging
from tiered.policies.actions import WHOLE_STORE, Offload, Sweep
from tiered.policies.executor import Outcome


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
    repeats = RepeatFilter(60, lambda: now)
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
    repeats, name = RepeatFilter(60, lambda: 0), "orders/0/data/{}.parquet: answered 403"
    records = [
        logging.LogRecord("tiered.x", logging.WARNING, "", 0, "%s", (name.format(uuid4()),), None)
        for _ in range(2)
    ]
    records[1].repeats = f"cannot upload {uuid4()}"  # as an action says it
    other = logging.LogRecord("tiered.x", logging.WARNING, "", 0, "", (), None)
    other.repeats = f"cannot upload {uuid4()}"
    assert [repeats.filter(item) for item in (*records, records[0], other)] == [True, True, False, False]
