"""``tiered demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..demo import run_demo
from .options import Verbose
from .output import stdout


def demo(
    fast: Annotated[
        bool, typer.Option("--fast", help="Skip Spark; the demo then takes some seconds.")
    ] = False,
    keep: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Keep store and bucket in this new directory, to explore them afterwards."
        ),
    ] = None,
    _verbose: Verbose = False,
) -> None:
    """Move a year of real flights through the tiers and query them, in one minute.

    The demo starts its own S3 server and needs no account and no setting. It checks every answer; the exit code is 1 if
    one is wrong.
    """
    if not run_demo(stdout(), spark=not fast, keep=keep):
        raise typer.Exit(1)
