"""The status page: what it is told, and what a browser makes of it."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tiered
from tests.monitor import chromium
from tests.monitor.scenes import requests_of, run, scene
from tests.support.clock import Clock
from tests.support.s3_server import S3Process
from tiered.monitor.http import Views, Web
from tiered.monitor.status_page import page, page_state
from tiered.policies.actions import ShipTail

HOSTILE = "<img src=x onerror=\"document.title='owned'\">"


@contextmanager
def served(state: Callable[[], dict[str, Any] | None], token: str | None = None) -> Iterator[str]:
    """The address of a server of the daemon's that shows `state`."""
    views = Views(problems=list, unready=list, metrics=lambda: None, page=page, state=state)
    web = Web.open("127.0.0.1:0", views, token)
    try:
        yield web.address
    finally:
        web.close()


def partition(topic: str, number: int, **values: Any) -> dict[str, Any]:
    """One partition as `page_state` tells of it."""
    return {
        "topic": topic,
        "partition": number,
        "start_offset": 100,
        "end_offset": 300,
        "published_offset": 200,
        "ranges": [
            {"tier": "cold", "start": 100, "end": 200, "bytes": 1000},
            {"tier": "warm", "start": 150, "end": 300, "bytes": 4096},
        ],
        "sizes": {"hot": 0, "warm": 4096, "cold": 1000},
        "segments": {"hot": 0, "warm": 1, "cold": 1},
        "lag": {"records": 100, "bytes": 2730, "segments": 1, "seconds": 75.0},
        "lag_unknown": False,
        "next": {"action": "ship_tail", "due_us": 1_000_000, "why": "offload.tail_interval 10s"},
        "scrubbed_us": None,
        "damaged": 0,
        "damage": [],
        "fault": "",
        "fenced": "",
        "paused": "",
        "problem": "",
        **values,
    }


def document(partitions: list[dict[str, Any]], errors: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """What the page is told."""
    return {
        "version": "1.2.3",
        "time_us": 0,
        "store": HOSTILE,
        "cold": "s3://bucket/prefix",
        "disk": {"free": 10 << 30, "size": 20 << 30},
        "lag": {"records": 100, "bytes": 2730, "segments": 1, "seconds": 75.0, "unknown": 0},
        "away": False,
        "passes": [],
        "running": [],
        "errors": errors or [],
        "consumers": [
            {"consumer": HOSTILE, "topic": "t", "partition": 0, "position": 1, "records": 2, "seconds": None}
        ],
        "partitions": partitions,
    }


def test_the_state_is_what_the_store_holds(
    tmp_path: Path, s3_bucket: str, clock: Clock, fast_server: S3Process
) -> None:
    """Ranges by tier, sizes, lag, the next action; plain JSON; and the bucket is asked nothing."""
    with scene(tmp_path / "data", s3_bucket, clock) as (store, passes):
        topic = store.create_topic("t", partitions=2)
        for _ in range(10):
            topic.append(b"x" * 100, partition=0)
        topic.flush()
        topic.roll()
        run(passes)
        for _ in range(2):
            clock.advance(3601)
            run(passes)
        for _ in range(5):
            topic.append(b"y", partition=0)
        topic.flush()
        clock.advance(3)
        before = requests_of(fast_server)
        state = page_state(store.watched(passes))
        assert requests_of(fast_server) == before
        assert json.loads(json.dumps(state)) == state
        first, second = state["partitions"]
        assert (first["start_offset"], first["end_offset"], first["published_offset"]) == (0, 15, 10)
        ranges = {item["tier"]: (item["start"], item["end"]) for item in first["ranges"]}
        assert ranges == {"hot": (0, 15), "warm": (10, 15), "cold": (0, 10)}
        assert first["lag"] == {
            "records": 5, "bytes": first["sizes"]["warm"], "segments": 1, "seconds": 3.0
        }  # fmt: skip
        assert {**first["lag"], "unknown": 0} == state["lag"]
        assert first["next"]["action"] == "ship_tail"
        assert first["next"]["why"] == "5 durable records are not in the bucket"
        assert (second["ranges"], second["lag"]["records"]) == ([], 0)
        assert [item["kind"] for item in state["passes"]] == ["full", "tails"]
        assert (state["errors"], state["running"], state["away"]) == ([], [], False)


def test_what_runs_and_what_failed_is_said(tmp_path: Path, clock: Clock) -> None:
    """While an action runs it is listed; an error stays on the page after its pass."""
    with scene(tmp_path / "data", f"file://{tmp_path}/bucket", clock) as (store, passes):
        store.create_topic("t").append(b"x", sync=True)
        store.pause("t", reason="a move")
        run(passes)
        assert page_state(store.watched(passes))["partitions"][0]["paused"].endswith("a move")
        assert page_state(store.watched(passes))["partitions"][0]["next"] is None
        store.resume("t")
        seen: list[dict[str, Any]] = []
        ship = store.tierer.handlers[ShipTail]

        def watched(action: Any) -> Any:
            seen.extend(page_state(store.watched(passes))["running"])
            ship(action)
            raise tiered.ColdStorageError("no room in the bucket")

        store.tierer.handlers[ShipTail] = watched
        clock.advance(11)
        run(passes)
        (running,) = seen
        assert (running["action"], running["topic"], running["end_offset"]) == ("ship_tail", "t", 1)
        state = page_state(store.watched(passes))
        assert state["running"] == []
        assert [error["message"] for error in state["errors"]] == ["ColdStorageError: no room in the bucket"]


def test_the_page_needs_nothing_from_elsewhere_and_makes_no_markup() -> None:
    """No address of another host, no file beside it but its data, no text that becomes markup or code."""
    text = page().decode("utf-8")
    assert re.findall(r"(?:https?:)?//[\w.-]+\.\w+|@import|url\(|\ssrc=", text) == []
    assert re.findall(r"<(?:link|script|img|iframe)[^>]*>", text) == [
        '<link rel="icon" href="data:,">',
        "<script>",
    ]
    assert re.findall(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function", text) == []
    assert re.findall(r"<(?:form|input[^>]*type=.?submit)|method: *.POST", text) == []


def test_a_browser_shows_all_of_it_and_runs_none_of_it(tmp_path: Path) -> None:
    """Names of any content as text; bars by tier; problems; a large topic is closed, and its rows are not made."""
    errors = [
        {"pass_kind": "full", "message": HOSTILE, "first_us": -9_000_000, "last_us": -5_000_000, "count": 3}
    ]
    parts = [
        partition(HOSTILE, 0, problem=HOSTILE, paused=f"paused: {HOSTILE}"),
        partition(HOSTILE, 1, damaged=1, damage=["x.parquet at byte 50"]),
        *(partition("large", number) for number in range(500)),
    ]
    asked: list[str] = []

    def state() -> dict[str, Any]:
        asked.append("state")
        return document(parts, errors)

    # With a token in the address, as a bookmark has it.
    with served(state, token="secret") as address:
        dom = chromium.run(tmp_path, f"http://any:secret@{address}/")
    assert asked
    text = html.unescape(re.sub(r"<script>.*?</script>|<style>.*?</style>", "", dom, flags=re.DOTALL))
    assert "<img" not in dom.partition("<script>")[0]
    assert text.count(HOSTILE) >= 6
    assert "owned</title>" not in dom
    assert len(re.findall(r'class="bar-row"', dom)) == 2
    assert re.search(r'<i class="cold"[^>]*width: 50%', dom)
    assert re.search(r'<i class="warm"[^>]*width: 75%', dom)
    for wanted in (
        "500 partitions", "75 s behind, 100 records", "ship tail in 1.0 s", "1 damaged object: x.parquet",
        "10.0 GiB", "full pass, 5.0 s ago, 3 times since", "tiered 1.2.3", "2 records behind, at offset 1",
    ):  # fmt: skip
        assert wanted in text, wanted
    assert 'class="stale"' not in dom


def test_a_browser_says_when_the_daemon_stopped(tmp_path: Path) -> None:
    """What is on the page stays, greyed out, and the page says since when it is old."""
    answers = iter([document([partition("t", 0)])])
    with served(lambda: next(answers, None)) as address:
        dom = chromium.run(tmp_path, f"http://{address}/", milliseconds=9000)
    assert '<body class="stale">' in dom
    assert re.search(r"The daemon answers 503: no store is open.*?may be wrong by now", dom)
    assert "all in the bucket" in dom or "75 s behind" in dom
