"""The application: its commands, exit codes and signals.

Exit codes: 0 for success; 1 for a failure, or a problem that a check found; 2 for wrong usage; 130 after Ctrl-C; 141 if
the reader of a pipe ended, like after SIGPIPE; 128 plus the number for other signals.
"""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Annotated, Any, Never

import typer
from typer.core import TyperGroup

from ..errors import TieredError
from ..hot.accelerator import accelerator
from ..version import VERSION
from ..warm.filesystem import NO_ROOM
from .append import append
from .bench import bench
from .changes import add_columns, add_partitions, delete, delete_before, roll
from .config import config
from .consumers import consumers
from .daemon import daemon
from .demo import demo
from .erase import erase, erasures
from .explain import explain
from .export import export
from .inspection import inspect
from .output import error_line, say, text_of_error
from .pause import pause, resume
from .read import read
from .restore import restore
from .serve import serve
from .sweep import sweep
from .table import table
from .tiering import plan, status, tier
from .topics import create, topics
from .verify import verify

_INTERRUPTED = 128 + signal.SIGINT
_PIPE_CLOSED = 128 + signal.SIGPIPE


class Commands(TyperGroup):
    """The group of all commands; turns expected errors into one line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        with _errors_as_exit_codes():
            result = super().invoke(ctx)
            sys.stdout.flush()
            return result

    def list_commands(self, ctx: Any) -> list[str]:  # noqa: ARG002
        return list(self.commands)  # in the order in which a new user needs them


@contextmanager
def _errors_as_exit_codes() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise typer.Exit(_INTERRUPTED) from None
    except BrokenPipeError:
        # Python flushes stdout at exit, which must not fail again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(_PIPE_CLOSED) from None
    except (TieredError, OSError) as error:
        # The store's own writes without room are a `DiskFull`.
        is_output = isinstance(error, OSError) and error.errno in NO_ROOM and not error.filename
        error_line(f"standard output: {text_of_error(error)}" if is_output else error)
        raise typer.Exit(1) from None


app = typer.Typer(
    name="tiered",
    cls=Commands,
    help="An append-only log store: hot memory, warm local segments, cold Parquet in a bucket; one reader.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Start with: tiered demo",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        say(f"tiered {VERSION}, appends in {'Python' if accelerator is None else 'C'}")
        raise typer.Exit


@app.callback()
def _options(
    _version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Take the options that come before a command."""


def _add(command: Callable[..., None], *examples: str) -> None:
    title = "Example" if len(examples) == 1 else "Examples"
    # Typer joins lines and separates paragraphs, so each example is a paragraph.
    app.command(epilog="\n\n".join([f"{title}:", *examples]))(command)


_add(demo, "tiered demo", "tiered demo --fast --keep ./look-around")
_add(
    create,
    "tiered create orders --partitions 4",
    "tiered create flights --schema flights.parquet --timestamp scheduled_departure --key carrier",
)
_add(
    append,
    "tiered append orders orders.jsonl --key customer --timestamp created_at",
    "tail -F access.log | tiered append access",
    "tiered append flights 2013.parquet 2014.csv",
)
_add(
    read,
    "tiered read orders --partition 0 --from 1000 --limit 10",
    "tiered read orders --since 1h --format json | jq .value",
    "tiered read access --from latest --follow",
    "tiered read orders --group billing --path ./data",
)
_add(topics, "tiered topics --path ./data")
_add(
    consumers,
    "tiered consumers --path ./data",
    "tiered consumers reset billing orders --to latest --path ./data",
    "tiered consumers delete billing --yes --path ./data",
)
_add(roll, "tiered roll orders --path ./data")
_add(add_columns, "tiered add-columns flights columns.json --path ./data")
_add(add_partitions, "tiered add-partitions orders 8 --path ./data")
_add(delete_before, "tiered delete-before orders 1000 --partition 2 --path ./data")
_add(delete, "tiered delete orders --yes --path ./data")
_add(
    erase,
    "tiered erase orders --keys-file keys.txt --reason DSAR-4711 --dry-run --path ./data",
    "tiered erase orders --keys-file keys.txt --reason DSAR-4711 --yes --path ./data",
)
_add(erasures, "tiered erasures --path ./data")
_add(status, "tiered status --path ./data")
_add(plan, "tiered plan --config tiered.toml", "tiered plan --in 30d --config tiered.toml")
_add(explain, "tiered explain orders --config tiered.toml")
_add(tier, "tiered tier --config tiered.toml")
_add(daemon, "tiered daemon --config tiered.toml", "tiered daemon --config tiered.toml --log json")
_add(
    serve,
    "tiered serve --path ./data",
    "tiered serve --config tiered.toml --listen 0.0.0.0:8815 --token-file token --tls-certificate cert.pem --tls-key key.pem",
)
_add(
    pause,
    'tiered pause orders --reason "export until Monday" --path ./data',
    "tiered pause --all --path ./data",
)
_add(resume, "tiered resume orders --path ./data", "tiered resume --all --path ./data")
_add(sweep, "tiered sweep --dry-run --config tiered.toml", "tiered sweep --config tiered.toml")
_add(restore, "tiered restore s3://bucket/prefix ./data --config tiered.toml")
_add(
    export,
    "tiered export orders --path s3://bucket/prefix",
    "tiered export orders --iceberg logs.orders --config tiered.toml",
)
_add(
    table,
    "tiered table --path ./data",
    "tiered table orders --sql duckdb --path ./data",
    "tiered table orders --take --config tiered.toml",
)
_add(
    verify,
    "tiered verify --deep --path ./data",
    "tiered verify --deep --repair --config tiered.toml",
)
_add(
    config,
    "tiered config check --config tiered.toml",
    "tiered config show --topic audit-eu --config tiered.toml",
)
_add(bench, "tiered bench --path /srv/events", "tiered bench --seconds 5 --json")
_add(
    inspect,
    "tiered inspect data/topics/orders/0/00000000000000000000-0.log",
    "tiered inspect s3://bucket/prefix/orders/<topic-id>/0/head.json",
)


def _end(number: int, _frame: FrameType | None) -> Never:
    raise SystemExit(128 + number)


def _open_standard_streams() -> None:
    """Replace standard streams that the caller closed: otherwise the next open file would become one of them."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            # By this name `check_stdout` knows that nobody sees what is written.
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        # As on stderr: a character that the encoding lacks is escaped and does not end the command.
        sys.stdout.reconfigure(errors="backslashreplace")


def main() -> None:
    """Run the command line; the entry point of the script ``tiered``."""
    # Imported modules live until exit, so the garbage collector can skip them. This shortens the end of short commands.
    gc.freeze()
    _open_standard_streams()
    # By default gRPC prints each failed handshake.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    # A signal becomes an exception, so that stores are flushed and closed, and child processes end.
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _end)
    app()
