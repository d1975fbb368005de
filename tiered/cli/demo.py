"""``tiered demo``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..demo import run_demo
from .options import Verbose
from .output import stdout


def demo(
    fast: Annotated[bool, typer.Option("--fast", help="Leave Spark out: some seconds in all.")] = False,
    keep: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Leave store and bucket in this new directory, to look around afterwards."
        ),
    ] = None,
    _verbose: Verbose = False,
) -> None:
    """See a year of real flights move through the tiers, then query them, in one minute.

    Starts an S3 server of its own, needs no account and no setting, and checks every answer; the exit code is 1 if
    one is wrong.
    """
    if not run_demo(stdout(), spark=not fast, keep=keep):
        raise typer.Exit(1)
