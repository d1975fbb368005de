"""The output of the demo: sections, steps with the bytes in each tier after them, checks."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table

from ..base.units import approximate_size

_STEP_WIDTH = 10
_TEXT_WIDTH = 58


@dataclass(frozen=True, slots=True)
class Figures:
    """Bytes in each tier at one moment."""

    memory_bytes: int
    disk_bytes: int
    bucket_bytes: int

    def __str__(self) -> str:
        sizes = (self.memory_bytes, self.disk_bytes, self.bucket_bytes)
        return "".join(f"{approximate_size(item) if item else '-':>10}" for item in sizes)


@dataclass(slots=True)
class StoryStep:
    """A running step; `text` is printed at its end."""

    text: str


class Stage:
    """Prints the output and counts checks.

    Attributes
    ----------
    figures
        Returns the bytes in each tier; None prints no figures.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._started = time.monotonic()
        self._section = 0
        self.passed = 0
        self.failed = 0
        self.figures: Callable[[], Figures] | None = None

    @property
    def seconds(self) -> float:
        """Time since the start."""
        return time.monotonic() - self._started

    def title(self, text: str, below: str) -> None:
        """Print the demo's title."""
        self._console.print(f"\n[bold]{text}[/bold]\n[dim]{below}[/dim]")

    def section(self, text: str) -> None:
        """Begin a section."""
        self._section += 1
        self._console.print(f"\n[bold]{self._section}  {text}[/bold]\n")

    def say(self, name: str, text: str) -> None:
        """Print a fact."""
        self._console.print(f"   {name:<{_STEP_WIDTH}}", text, markup=False, soft_wrap=True)

    def print(self, text: str = "") -> None:
        """Print a line unchanged."""
        self._console.print(text, markup=False, soft_wrap=True)

    def heads(self) -> None:
        """Print the heads of the columns with figures."""
        names = "".join(f"{name:>10}" for name in ("memory", "disk", "bucket"))
        self._console.print(f"   [dim]{'':<{_STEP_WIDTH}} {'':<{_TEXT_WIDTH}}{names}{'time':>9}[/dim]")

    @contextmanager
    def step(self, name: str, text: str = "") -> Iterator[StoryStep]:
        """Run a step; print it when it is done, with its time."""
        step = StoryStep(text)
        started = time.monotonic()
        if self._console.is_terminal:
            with self._console.status(f"{name} {text}", spinner="dots"):
                yield step
        else:
            yield step
        seconds = time.monotonic() - started
        figures = str(self.figures()) if self.figures is not None else ""
        self._console.print(
            f"   {name:<{_STEP_WIDTH}} {step.text:<{_TEXT_WIDTH}}{figures}{_time(seconds):>9}",
            markup=False,
            soft_wrap=True,
        )

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[str]], bold: Sequence[int] = ()) -> None:
        """Print a table; columns whose name begins with ``>`` are aligned to the right."""
        table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1))
        for name in columns:
            table.add_column(name.removeprefix(">"), justify="right" if name.startswith(">") else "left")
        for i, row in enumerate(rows):
            table.add_row(*row, style="bold" if i in bold else None)
        self._console.print(Padding(table, (0, 0, 1, 3), expand=False))

    def check(self, holds: bool, text: str) -> None:
        """Print the result of a check."""
        if holds:
            self.passed += 1
            self._console.print(f"   [bold green]PASS[/bold green]  {text}", soft_wrap=True)
        else:
            self.failed += 1
            self._console.print(f"   [bold red]FAIL[/bold red]  {text}", soft_wrap=True)

    def verdict(self) -> None:
        """Print the number of passed checks and the total time."""
        total = self.passed + self.failed
        colour = "red" if self.failed else "green"
        text = f"{self.passed} of {total} checks passed" if self.failed else f"all {total} checks passed"
        self._console.print(f"\n   [bold {colour}]{text}[/bold {colour}] in {self.seconds:.0f} s")


def _time(seconds: float) -> str:
    return f"{seconds * 1000:.0f} ms" if seconds < 0.9995 else f"{seconds:.1f} s"
