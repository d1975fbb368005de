"""What commands print: tables, JSON, sizes and times for people. Data go to stdout, the rest to stderr."""

from __future__ import annotations

import base64
import errno
import json
import math
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, datetime, timedelta
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from ..ingest import to_datetime
from ..units import approximate_size

# Wide enough that a table in a pipe or a file keeps its lines whole.
_PIPE_WIDTH = 240


class _Console(Console):
    def on_broken_pipe(self) -> None:
        # Rich would end the program with 1, as if something had failed.
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def stdout() -> Console:
    """Return a console on the standard output of this moment."""
    return _Console(
        file=sys.stdout, highlight=False, soft_wrap=False, width=None if sys.stdout.isatty() else _PIPE_WIDTH
    )


def stderr() -> Console:
    """Return a console on the standard error of this moment."""
    return _Console(file=sys.stderr, highlight=False)


def text_of_error(error: BaseException) -> str:
    """Return what went wrong, without the number that the system has for it."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error) or type(error).__name__


def error_line(error: BaseException | str) -> None:
    """Say in one line on stderr what went wrong."""
    text = error if isinstance(error, str) else text_of_error(error)
    sys.stderr.write(f"error: {' '.join(text.split())}\n")
    sys.stderr.flush()


def print_json(value: Any) -> None:
    """Print a JSON document; in ASCII, which every encoding of a terminal or pipe has."""
    sys.stdout.write(json.dumps(_finite(value), indent=2, default=plain) + "\n")


def json_line(row: Mapping[str, Any]) -> str:
    """Return a row as one line of JSON.

    Bytes are text where they are UTF-8, else ``{"base64": "..."}``; times are ISO 8601; decimals are text, and so
    are the numbers that JSON does not have (``"NaN"``, ``"Infinity"``).
    """
    try:
        return json.dumps(row, ensure_ascii=False, allow_nan=False, default=plain)
    except ValueError:
        return json.dumps(_finite(row), ensure_ascii=False, allow_nan=False, default=plain)


def plain(value: object) -> object:
    """Return what stands in JSON for a value that it does not have."""
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode("ascii")}
    if isinstance(value, datetime):
        return iso(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return str(value)


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
        title=title or None,
        title_justify="left",
        title_style="bold",
        pad_edge=False,
        show_edge=False,
    )
    for name in columns:
        right = name.startswith(">")
        table.add_column(name.removeprefix(">"), justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    stdout().print(table)


def print_facts(facts: dict[str, Any]) -> None:
    """Print names and values, one a line."""
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    for name, value in facts.items():
        table.add_row(name.removesuffix("_us").replace("_", " "), Text(text_of(name, value)))
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
    """Return a time in ISO 8601, UTC; the number itself where no calendar has it."""
    try:
        return iso(to_datetime(microseconds))
    except OverflowError:
        return str(microseconds)


def iso(when: datetime) -> str:
    """Return a time in ISO 8601, with a Z where it is UTC."""
    return when.isoformat().replace("+00:00", "Z")


def count(number: int, noun: str) -> str:
    """Return ``1 record``, ``2,000 records``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def size(number: int) -> str:
    """Return a size for people; a dash for nothing."""
    return approximate_size(number) if number else "-"


def spinner() -> Progress:
    """Return a line with a spinner and a clock on stderr; nothing where that is no terminal."""
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=stderr(),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
