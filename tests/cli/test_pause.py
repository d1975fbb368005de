"""A pause holds for every process until it is ended: nothing is moved or deleted, and plan, status, explain say so."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tiered
from tests.cli.commands import one_error
from tests.support.disks import ForgetfulDisk, Killed, MortalDisk
from tests.support.paths import ROOT
from tiered.engine.host import Host
from tiered.format.document import decode_document
from tiered.opening import open_store
from tiered.settings.settings import Settings
from tiered.tiering.pauses import PAUSED_FILE, Pauses
from tiered.warm.filesystem import OsFileSystem

Run = Callable[..., Any]
FORMAT = ROOT / "docs" / "format.md"
HOUR_US = 3600 * 1_000_000
EAGER = Settings.model_validate(
    {
        "store": {"sync_interval": "1h"},
        "policies": {
            "default": {
                "compress": "off",
                "offload": {"after": "0s", "tail_interval": "1s"},
                "local_retention": {"age": "1h"},
                "retention": {"age": "1d"},
            }
        },
    }
)


class Clock:
    now_us = 1_700_000_000 * 1_000_000

    def __call__(self) -> int:
        return self.now_us


def files(folder: Path) -> dict[str, bytes]:
    """What is in a store or bucket but for locks, and pauses."""
    ignored = {"tiering.lock", "tiering-next.lock", "passes.lock", "writer.lock", PAUSED_FILE}
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name not in ignored
    }


def test_nothing_of_a_paused_topic_is_moved_deleted_or_shipped(tmp_path: Path) -> None:
    """Not by a pass, a tail pass or a sweep, for years; the rest is, and after the pause all of it."""
    clock = Clock()
    host = Host(clock=clock)
    with open_store(tmp_path / "data", cold=f"file://{tmp_path}/bucket", settings=EAGER, host=host) as store:
        topics = [store.create_topic(name) for name in ("kept", "moved")]
        for topic in topics:
            topic.append_many([b"x" * 100] * 100)
            topic.roll()
        assert store.tier().failed == ()
        for topic in topics:
            topic.append(b"tail", sync=True)
        store.pause("kept", reason="look")
        paths = [tmp_path / "data" / "topics" / "kept", next((tmp_path / "bucket").glob("kept/*"))]
        before = [files(path) for path in paths]
        for hours in (2, 48, 10_000):
            clock.now_us += hours * HOUR_US
            with open_store(tmp_path / "data", settings=EAGER, host=host, tierer=True) as other:
                # A process of its own, which was not there when it was paused.
                plan = other.plan()
                assert not [action for action in plan.actions if action.topic == "kept"]
                assert [
                    note for note in plan.notes if note.startswith("kept: paused since") and "look" in note
                ]
                other.tier()
                other.tierer.tail_pass()
                other.sweep()
        assert [files(path) for path in paths] == before
        assert len(topics[0].scan().to_arrow()) == 101
        with open_store(tmp_path / "data", settings=EAGER, host=host, read_only=True) as reader:
            assert (
                len(reader.topic("moved").scan().to_arrow()) == 1
            )  # in the active segment, which is its writer's
        assert store.resume("kept")
        for _ in range(3):
            assert store.tier().failed == ()
        assert len(topics[0].scan().to_arrow()) == 0


def test_a_paused_store_is_not_swept_by_a_pass(tmp_path: Path) -> None:
    clock = Clock()
    with open_store(
        tmp_path / "data", cold=f"file://{tmp_path}/bucket", settings=EAGER, host=Host(clock=clock)
    ) as store:
        store.create_topic("t").append(b"x", sync=True)
        store.tier()
        clock.now_us += 48 * HOUR_US
        assert "sweep" in {action.kind for action in store.plan().actions}
        store.pause()
        assert store.plan().actions == ()
        assert store.plan().tiers[0].before > 0
        with pytest.raises(tiered.ConfigError, match="resume --all"):
            store.resume("t")
        assert store.resume()
        assert not store.resume()
        assert store.plan().actions != ()


def test_a_pause_is_there_or_not_whenever_the_process_dies_or_power_goes(tmp_path: Path) -> None:
    step = 0
    while True:
        root = tmp_path / str(step)
        (root / "topics" / "t").mkdir(parents=True)
        disk = MortalDisk(step)
        try:
            Pauses(root, disk, Clock()).pause("t", "why")
            break
        except Killed:
            found = Pauses(root, OsFileSystem(), Clock()).of("t")
            assert found is None or found.reason == "why"
        Pauses(root, OsFileSystem(), Clock()).pause("t", "again")  # what was left is in nobody's way
        step += 1
    assert step > 3
    root = tmp_path / "power"
    (root / "topics" / "t").mkdir(parents=True)
    forgetful = ForgetfulDisk(root)
    Pauses(root, forgetful, Clock()).pause("t", "why")
    forgetful.cut_power()
    assert Pauses(root, OsFileSystem(), Clock()).of("t") is not None
    forgetful = ForgetfulDisk(root)
    assert Pauses(root, forgetful, Clock()).resume("t")
    forgetful.cut_power()
    assert Pauses(root, OsFileSystem(), Clock()).of("t") is None


def test_a_damaged_file_pauses_until_it_is_resumed(tmp_path: Path) -> None:
    """Whether somebody wants the pause is unknown, and deleting cannot be made up for."""
    with tiered.open(tmp_path / "data", settings=EAGER) as store:
        store.create_topic("t").append(b"x", sync=True)
        path = tmp_path / "data" / "topics" / "t" / PAUSED_FILE
        path.write_bytes(b"{}")
        (note,) = store.plan(store.context.clock() // 1000 + 10**10).notes
        assert "a file that cannot be read" in note
        assert store.resume("t")
        assert store.plan().notes == ()


def test_commands_say_what_is_paused(tiered_: Run, data: Path) -> None:
    tiered_("create", "orders")
    tiered_("append", "orders", stdin="a\nb\n")
    assert "orders is paused since " in tiered_("pause", "orders", "--reason", "an\nexport").stdout
    path = data / "topics" / "orders" / PAUSED_FILE
    _, _, described = FORMAT.read_text().partition(f"### {PAUSED_FILE}\n")
    assert set(re.findall(r"^\| `(\w+)`", described.partition("\n#")[0], re.MULTILINE)) == set(
        decode_document(path.read_bytes(), where=str(path))
    )
    for command in (["plan"], ["status"], ["tier"], ["explain", "orders"]):
        text = tiered_(*command).stdout
        assert "paused since" in text, command
        assert ": an export" in text, command
    assert json.loads(tiered_("status", "--json").stdout)["partitions"][0]["paused"].endswith(": an export")
    assert json.loads(tiered_("explain", "orders", "--json").stdout)["paused"].endswith(": an export")
    assert json.loads(tiered_("tier", "--json").stdout)["paused"]["orders"].endswith(": an export")
    tiered_("pause", "--all")
    assert "tiered resume --all" in one_error(tiered_("resume", "orders"))
    assert "orders stays paused since" in tiered_("resume", "--all").stdout
    assert tiered_("resume", "orders").stdout == "orders goes on\n"
    assert tiered_("resume", "orders").stdout == "orders was not paused\n"
    assert "no topic 'x'" in one_error(tiered_("pause", "x"))
    for wrong in (["pause"], ["resume"], ["pause", "orders", "--all"]):
        assert tiered_(*wrong).exit_code == 2
