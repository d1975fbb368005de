"""The output of commands: tables, JSON, sizes and times for people. Data go to stdout, all else to stderr."""

from __future__ import annotations

import base64
import errno
import io
import json
import math
import os
import select
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import IO, Any

import typer
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ..base.units import approximate_size, printable, printable_json
from ..errors import ConfigError
from ..format.timestamps import to_datetime

# Wide enough that a table in a pipe or a file has no broken lines.
_PIPE_WIDTH = 240


class _Console(Console):
    def on_broken_pipe(self) -> None:
        # Rich would exit with 1; `app` has another exit code for this.
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def stdout() -> Console:
    """Return a console on the standard output of this moment."""
    return _Console(
        file=sys.stdout, highlight=False, soft_wrap=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH
    )


def stderr() -> Console:
    """Return a console on the standard error of this moment."""
    return _Console(file=sys.stderr, highlight=False)


def say(text: str = "", *, err: bool = False) -> None:
    """Print a line of text, escaped. Commands print text only by this function, tables and JSON."""
    typer.echo(printable(text), err=err)


def text_of_error(error: BaseException) -> str:
    """Return the message of an error, without the error number of the system."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def error_line(error: BaseException | str) -> None:
    """Print an error in one line on stderr."""
    text = error if isinstance(error, str) else text_of_error(error)
    sys.stderr.write(f"error: {printable(' '.join(text.split()))}\n")
    sys.stderr.flush()


def print_json(value: Any) -> None:
    """Print a JSON document in ASCII, which every encoding has. Values are those of `json_line`."""
    sys.stdout.write(json.dumps(_json_values(value), indent=2, default=plain) + "\n")


def check_stdout() -> None:
    """Raise `ConfigError` if the caller closed stdout: `app` put the null device in its place."""
    if getattr(sys.stdout, "name", None) == os.devnull:
        raise ConfigError(
            "stdout is closed, so nobody would see what is printed: write it to a pipe or a file"
        )


def sleep_while_read(seconds: float) -> None:
    """Wait; raise `BrokenPipeError` at once if stdout is a pipe whose reader ended, for example `head`.

    Otherwise the command would not notice before it prints the next record, which may never come.
    """
    try:
        output = sys.stdout.fileno()
    except OSError:
        time.sleep(seconds)
        return
    poll = select.poll()
    poll.register(output, 0)
    if poll.poll(seconds * 1000):
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


class EscapedTerminal(io.RawIOBase):
    """A terminal that gets its text through `printable`, or its JSON through `printable_json`."""

    def __init__(self, terminal: IO[bytes], *, json: bool) -> None:
        self._terminal = terminal
        self._escape = printable_json if json else printable

    def write(self, data: Any) -> int:
        """Write whole lines."""
        text = bytes(data).decode("utf-8", "backslashreplace")
        self._terminal.write(self._escape(text).encode())
        return len(data)

    def flush(self) -> None:
        """Flush the terminal."""
        self._terminal.flush()


def json_line(row: Mapping[str, Any]) -> str:
    """Return a row as one line of JSON, in which the values of a name have one type.

    Bytes are text. If the bytes under a name are not all UTF-8, its value is null, and another name, such as
    ``value_base64``, has them in base64. Times are ISO 8601. Decimals are text, and so are numbers that JSON does not
    have (``"NaN"``, ``"Infinity"``).
    """
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False, default=plain)
    except ValueError:  # a number that JSON does not have, or bytes that are not UTF-8
        return json.dumps(_json_values(row), ensure_ascii=False, allow_nan=False, default=plain)


def json_text(value: object) -> str:
    """Return a nested value as JSON for a line of text; bytes stay as they are (``surrogateescape``)."""

    def raw(item: object) -> object:
        return item.decode("utf-8", "surrogateescape") if isinstance(item, bytes) else plain(item)

    return json.dumps(_finite(value), ensure_ascii=False, default=raw)


def plain(value: object) -> object:
    """Return the JSON form of a value of another type; raise `UnicodeDecodeError` for bytes that are not UTF-8."""
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value)


def _json_values(value: Any) -> Any:
    """Return a document without infinite numbers; bytes that are not UTF-8 move to names for base64."""
    if isinstance(value, Mapping):
        values: dict[Any, Any] = {}
        for name, item in value.items():
            if _is_text(item):
                values[name] = _json_values(item)
            else:
                values[name] = None
                values[_name_beside(value, name)] = _in_base64(item)
        return values
    if isinstance(value, (list, tuple)):
        return [_json_values(item) for item in value]
    return _finite(value)


def _is_text(value: Any) -> bool:
    """Whether all bytes in a value are UTF-8; bytes in a nested object do not count, because it has its own names."""
    if isinstance(value, (list, tuple)):
        return all(map(_is_text, value))
    if isinstance(value, bytes):
        try:
            value.decode()
        except UnicodeDecodeError:
            return False
    return True


def _name_beside(names: Mapping[Any, Any], name: object) -> str:
    new_name = f"{name}_base64"
    while new_name in names:
        new_name += "_"
    return new_name


def _in_base64(value: Any) -> Any:
    if isinstance(value, bytes):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, Mapping):
        return {name: _in_base64(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_in_base64(item) for item in value]
    return _finite(value)


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, title: str = "") -> None:
    """Print a table; columns whose name begins with ``>`` are aligned to the right."""
    table = Table(
        box=SIMPLE_HEAD,
        title=Text(printable(title)) if title else None,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
        show_edge=False,
    )
    for name in columns:
        right = name.startswith(">")
        table.add_column(
            Text(printable(name.removeprefix(">"))), justify="right" if right else "left", overflow="fold"
        )
    for row in rows:
        table.add_row(*(Text(printable(cell)) for cell in row))
    stdout().print(table)


def print_facts(facts: dict[str, Any]) -> None:
    """Print names and values, one a line."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(
            Text(printable(name.removesuffix("_us").replace("_", " "))), Text(printable(text_of(name, value)))
        )
    stdout().print(table)


def text_of(name: str, value: Any) -> str:
    """Return a value for people; names that end in ``_us`` hold times, those that end in ``bytes`` sizes."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int) and name.endswith("_us"):
        return moment(value)
    if isinstance(value, int) and name.endswith("bytes"):
        return f"{value:,} ({approximate_size(value)})" if value >= 1000 else f"{value:,}"
    if isinstance(value, int):
        return f"{value:,}"
    return str(value)


def moment(microseconds: int) -> str:
    """Return a time in ISO 8601, UTC; the number itself if it is beyond the calendar."""
    try:
        return iso(to_datetime(microseconds))
    except OverflowError:
        return str(microseconds)


def iso(when: datetime) -> str:
    """Return a time in ISO 8601, with a Z for UTC."""
    return when.isoformat().replace("+00:00", "Z")


def count(number: int, noun: str) -> str:
    """Return ``1 record``, ``2,000 records``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size(number: int) -> str:
    """Return a size for people; a dash for nothing."""
    return approximate_size(number) if number else "-"


def spinner() -> Progress:
    """Return a line with a spinner and a clock on stderr; it shows nothing if stderr is no terminal."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=stderr(),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
