"""``tiered serve``."""

from __future__ import annotations

import os
import queue
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from ..daemon.notify import Notifier
from ..flight.wire.options import read_token
from ..settings.settings import Settings
from ..warm.catalog import STORE_FILE
from .options import ColdUrl, ConfigFile, StorePath, Verbose, open_for_writing, overrides_of
from .output import say

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


def serve(
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where to listen; port 0 is any. Default: flight.listen, else 127.0.0.1:8815",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="What clients have to show; else TIERED_FLIGHT_TOKEN says so."),
    ] = None,
    tls_certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate in PEM, to serve over TLS.")
    ] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its key, in PEM.")] = None,
    allow_remote: Annotated[
        bool, typer.Option("--allow-remote", help="Answer other hosts without a token.")
    ] = False,
    daemon: Annotated[
        bool, typer.Option("--daemon", help="Run the tiering passes in this process, too.")
    ] = False,
    config: ConfigFile = None,
    path: StorePath = None,
    cold: ColdUrl = None,
    _verbose: Verbose = False,
) -> None:
    """Open the store as its writer and serve it over Arrow Flight, until Ctrl-C or SIGTERM.

    Other processes append to it and read all of it by tiered.open("grpc://host:port"), other commands by --path with
    that URL. Only this host is answered, unless --listen and a token say otherwise. At the end everything that was
    appended is flushed. flight.metrics answers /healthz, /readyz and /metrics; with --daemon so does daemon.metrics.
    """
    overrides: dict[str, Any] = overrides_of(path, cold)
    files = {"tls_certificate": tls_certificate, "tls_key": tls_key}
    named: dict[str, Any] = {name: str(file) for name, file in files.items() if file is not None}
    if listen is not None:
        named["listen"] = listen
    if named:
        overrides["flight"] = named
    settings = Settings.load(config, **overrides)
    token = read_token(token_file)
    notifier = Notifier.of(os.environ)
    root = settings.store.path
    made = "://" not in root and not (Path(root) / STORE_FILE).exists()
    with (
        _signals() as asked,
        open_for_writing(settings, daemon=daemon) as store,
        store.serve(token=token, allow_remote=allow_remote) as server,
    ):
        # The only line on standard output: what a script has to know.
        say(server.location)
        notifier.ready()
        if made:
            say(f"no store was at {store.url}: made a new one, which is empty", err=True)
        say(f"serving {store.url}; Ctrl-C ends it", err=True)
        asked.get()
        notifier.stopping()


@contextmanager
def _signals() -> Iterator[queue.SimpleQueue[int]]:
    """Collect the signals that ask for an end; a second one ends the process as ever."""
    asked: queue.SimpleQueue[int] = queue.SimpleQueue()
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def note(number: int, _frame: object) -> None:
        for each, handler in before.items():
            signal.signal(each, handler)
        asked.put(number)

    for number in _SIGNALS:
        signal.signal(number, note)
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
