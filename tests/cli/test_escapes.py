"""Text of a bucket reaches a terminal escaped: it is anybody's who can write there."""

from __future__ import annotations

import json
import logging
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tiered
from tests.support import fork_server
from tests.support.paths import ROOT
from tests.support.stores import HOUR_US
from tiered.base.units import printable, printable_json
from tiered.cli.output import error_line, print_facts, print_table, say
from tiered.daemon.logs import HumanLine, JsonLine

EVIL = "\x1b]0;PWNED\x07\x1b[2J\x9b31m\u202eorders\u2066\x7f\r"
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def on_terminal(*arguments: str) -> str:
    """What a command writes to a terminal."""
    mine, theirs = pty.openpty()
    process = fork_server.Popen(
        [sys.executable, "-m", "tiered", *arguments], stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs,
        cwd=ROOT, env=os.environ | {"TERM": "dumb"},
    )  # fmt: skip
    os.close(theirs)
    output = b""
    try:
        while data := os.read(mine, 65536):
            output += data
    except OSError:  # the other end is closed
        pass
    process.wait()
    os.close(mine)
    return output.decode().replace("\r\n", "\n")


@given(st.text())
def test_nothing_that_moves_a_terminal_is_left(text: str) -> None:
    """Tabs and ends of lines stay, and so does whatever can be read."""
    assert RAW.search(printable(text)) is None
    assert printable(text.translate({0x1B: "x"})).count("\n") == text.count("\n")
    document = json.dumps({"name": text}, ensure_ascii=False)
    assert RAW.search(printable_json(document)) is None
    assert json.loads(printable_json(document)) == {"name": text}


def test_everything_that_commands_print_is_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    say(EVIL)
    say(EVIL, err=True)
    error_line(EVIL)
    print_table([EVIL], [[EVIL]], title=f"[bold]{EVIL}[/bold]")
    print_facts({EVIL: EVIL})
    said = capsys.readouterr()
    for text in said:
        assert RAW.search(text) is None
        assert r"\x1b]0;PWNED\x07" in text
    assert "[bold]" in said.out  # text, not a style


def test_what_is_logged_is_escaped() -> None:
    record = logging.LogRecord("tiered", logging.WARNING, "", 0, "%s", (EVIL,), None)
    for formatter in (HumanLine(), JsonLine()):
        assert RAW.search(formatter.format(record)) is None
    assert json.loads(JsonLine().format(record))["message"] == EVIL


def test_commands_print_by_what_escapes() -> None:
    """One way out: a new command that takes another would be the next hole."""
    for path in (ROOT / "tiered" / "cli").glob("*.py"):
        if path.name not in ("output.py", "app.py"):
            assert not re.findall(
                r"typer\.(?:secho|echo)\(|sys\.std(?:out|err)\.write\(|[^_.\w]print\(", path.read_text()
            ), path


def test_records_are_escaped_on_a_terminal_alone(tmp_path: Path) -> None:
    """A pipe gets every byte as it was appended."""
    schema = pa.schema([("text", pa.string())])
    with tiered.open(tmp_path / "store", cold=f"file://{tmp_path}/bucket") as store:
        store.create_topic("records").append(EVIL.encode())
        store.create_topic("typed", schema=schema).append_batch(pa.table({"text": [EVIL]}))
    for topic in ("records", "typed"):
        for how in ("text", "json"):
            arguments = ["read", topic, "--format", how, "--path", str(tmp_path / "store")]
            text = on_terminal(*arguments)
            assert "PWNED" in text
            assert RAW.search(text) is None
        piped = fork_server.run(
            [sys.executable, "-m", "tiered", "read", topic, "--format", "text", "--path", str(tmp_path / "store")],
            capture_output=True, cwd=ROOT, check=True,
        )  # fmt: skip
        assert "\x9b31m\u202eorders".encode() in piped.stdout


def test_a_hostile_bucket_writes_nothing_to_the_terminal(tmp_path: Path) -> None:
    """Columns have any names; so have objects and folders."""
    with tiered.open(tmp_path / "store", cold=f"file://{tmp_path}/bucket") as store:
        topic = store.create_topic("t", schema=pa.schema([(EVIL, pa.string())]))
        topic.append_batch(pa.table({EVIL: ["x"]}))
        topic.roll()
        store.tier((store.context.clock() + HOUR_US) // 1000)
    (tmp_path / "bucket" / "\x1b]0;PWNED\x07").mkdir()
    data = next((tmp_path / "bucket").rglob("*.parquet"))
    for arguments in (["topics"], ["status"], ["inspect", EVIL.replace("\x00", "")], ["inspect", str(data)]):
        text = on_terminal(
            *arguments, *([] if "bucket" in arguments[-1] else ["--path", f"file://{tmp_path}/bucket"])
        )
        assert text
        assert RAW.search(text) is None, arguments
