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
            help="Address to listen at; port 0 takes any free port. Default: flight.listen, else 127.0.0.1:8815",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="File with the token of clients. Default: TIERED_FLIGHT_TOKEN"),
    ] = None,
    tls_certificate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificate in PEM, to serve over TLS.")
    ] = None,
    tls_key: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Key of the certificate, in PEM.")
    ] = None,
    allow_remote: Annotated[
        bool, typer.Option("--allow-remote", help="Let other hosts connect without a token.")
    ] = False,
    daemon: Annotated[bool, typer.Option("--daemon", help="Also run the passes in this process.")] = False,
    config: ConfigFile = None,
    path: StorePath = None,
    cold: ColdUrl = None,
    _verbose: Verbose = False,
) -> None:
    """Open the store as its writer and serve it over Arrow Flight until Ctrl-C or SIGTERM.

    Other processes append and read with tiered.open("grpc://host:port"), other commands with this URL as --path. Only this
    host can connect, unless --listen names another address and there is a token. At the end, all appended records are
    flushed. The address flight.metrics serves /healthz, /readyz and /metrics; with --daemon, so does daemon.metrics.
    """
    overrides: dict[str, Any] = overrides_of(path, cold)
    files = {"tls_certificate": tls_certificate, "tls_key": tls_key}
    flight: dict[str, Any] = {name: str(file) for name, file in files.items() if file is not None}
    if listen is not None:
        flight["listen"] = listen
    if flight:
        overrides["flight"] = flight
    settings = Settings.load(config, **overrides)
    token = read_token(token_file)
    notifier = Notifier.of(os.environ)
    root = settings.store.path
    created = "://" not in root and not (Path(root) / STORE_FILE).exists()
    with (
        _signals() as stop_signals,
        open_for_writing(settings, daemon=daemon) as store,
        store.serve(token=token, allow_remote=allow_remote) as server,
    ):
        # The only line on stdout, for scripts.
        say(server.location)
        notifier.ready()
        if created:
            say(f"no store was at {store.url}: made a new one, which is empty", err=True)
        say(f"serving {store.url}; Ctrl-C ends it", err=True)
        stop_signals.get()
        notifier.stopping()


@contextmanager
def _signals() -> Iterator[queue.SimpleQueue[int]]:
    """Collect the first signal that stops the server; a second one has its default effect."""
    stop_signals: queue.SimpleQueue[int] = queue.SimpleQueue()
    before = {number: signal.getsignal(number) for number in _SIGNALS}

    def handle(number: int, _frame: object) -> None:
        for each, handler in before.items():
            signal.signal(each, handler)
        stop_signals.put(number)

    for number in _SIGNALS:
        signal.signal(number, handle)
    try:
        yield stop_signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
