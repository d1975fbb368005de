"""``tiered bench``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..base.units import approximate_size
from .options import AsJson, Verbose
from .output import print_json, print_table, say, spinner
from .quick_bench import VALUE_BYTES, Figure, measure, scratch


def bench(
    seconds: Annotated[
        float, typer.Option(metavar="N", help="Approximate duration of all measurements.", min=0.1, max=3600)
    ] = 6.0,
    path: Annotated[
        Path,
        typer.Option(
            "--path",
            metavar="DIR",
            help="The disk to measure: a directory on it.",
            exists=True,
            file_okay=False,
        ),
    ] = Path(),
    as_json: AsJson = False,
    _verbose: Verbose = False,
) -> None:
    """Measure appends, scans and reads on this machine and disk, each with its limit in the same run.

    The command works in a new directory below --path and removes it afterwards. It writes less than 1 GiB. Figures of a
    busy machine are not reliable.
    """
    figures = []
    with scratch(path) as folder, spinner() as progress:
        task = progress.add_task("measuring")
        for figure in measure(folder, seconds):
            figures.append(figure)
            progress.update(task, description=f"measuring: {figure.name}")
    if as_json:
        print_json(
            {
                "path": str(path.absolute()),
                "seconds": seconds,
                "value_bytes": VALUE_BYTES,
                "figures": [figure.to_json() for figure in figures],
            }
        )
        return
    print_table(
        ("what", ">a second", "limit", ">a second", ">share"),
        [
            (
                figure.name,
                _rate(figure.per_second, figure),
                figure.limit,
                _rate(figure.limit_per_second, figure),
                f"{figure.share:.0%}" if figure.share >= 0.1 else f"{figure.share:.1%}",
            )
            for figure in figures
        ],
    )
    say(f"values of {VALUE_BYTES} bytes, one thread, disk of {path.absolute()}")


def _rate(per_second: float, figure: Figure) -> str:
    return approximate_size(int(per_second)) if figure.unit == "bytes" else f"{per_second:,.0f} {figure.unit}"
