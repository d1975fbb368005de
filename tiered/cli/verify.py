"""``tiered verify``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from ..base.units import approximate_size, printable
from ..engine.locations import cold_options
from ..errors import ConfigError, ReadOnly, TieredError
from ..reader.locations import TierLocations
from ..reader.tiers import Tiers
from ..repair.repair import repair_store
from ..settings.settings import Settings
from ..verify.damage_memory import Memory
from ..verify.report import Problem, VerifyReport
from ..verify.verifier import verify_store
from ..warm.bucket_binding import BucketBinding, read_binding
from ..warm.catalog import STORE_FILE, TOPICS_DIRECTORY
from .options import AsJson, ColdUrl, ConfigFile, StorePath, Verbose, load_settings, names_server
from .output import count, error_line, print_json, print_table, say, stderr


def verify(
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every byte, and compare what lies in two tiers.")
    ] = False,
    repair: Annotated[
        bool, typer.Option("--repair", help="Repair what can be repaired without losing anything.")
    ] = False,
    rebuild_manifest: Annotated[
        bool,
        typer.Option(
            "--rebuild-manifest",
            help="With --repair: also publish a lost manifest that was rebuilt from the objects. Removed records may "
            "reappear, so without this it is only shown.",
        ),
    ] = False,
    config: ConfigFile = None,
    path: StorePath = None,
    cold: ColdUrl = None,
    as_json: AsJson = False,
    _verbose: Verbose = False,
) -> None:
    """Look whether everything in the store and its bucket is what it should be.

    Runs beside writers and passes, on a store that is too damaged to be opened, and without a bucket within reach:
    what could not be looked at is listed as unknown, and is no problem. The exit code is 1 if a problem was found or, with
    --repair, is left, and if something could not be looked at. A repair needs the store for itself, and keeps every
    damaged original.
    """
    if rebuild_manifest and not repair:
        raise ConfigError("--rebuild-manifest belongs to --repair")
    access = _access(load_settings(config, path, cold))
    with _bar() as bar:
        task = bar.add_task("", total=None)

        def progress(where: str, read: int) -> None:
            bar.update(task, advance=read, description=printable(where.rpartition("/")[2]))

        try:
            if repair:
                report = repair_store(access, deep=deep, rebuild_manifest=rebuild_manifest, progress=progress)
            else:
                report = verify_store(access, deep=deep, progress=progress, memory=Memory())
        finally:
            access.close()
    if as_json:
        print_json(report.to_json())
    else:
        _print(report)
    if report.problems:
        error_line(f"{count(len(report.problems), 'problem')} found: {report.problems[0]}")
    elif report.unknown:
        error_line(f"not everything could be looked at: {report.unknown[0]}")
    if report.problems or report.unknown:
        raise typer.Exit(1)


def _access(settings: Settings) -> Tiers:
    """Return the way to a store's tiers; nothing of it needs to be sound."""
    text = str(settings.store.path)
    if names_server(text):
        raise ReadOnly(f"{text} is a server; verify where its store lies, or by the URL of its bucket")
    if "://" in text:
        place = BucketBinding(text, settings.cold.endpoint_url, settings.cold.region)
        return Tiers(TierLocations(None, text, cold_options(settings, place)))
    root = Path(text).absolute()
    if not (root / STORE_FILE).exists() and not (root / TOPICS_DIRECTORY).exists():
        raise ConfigError(f"there is no store at {root}; check the path")
    try:
        place = read_binding(root)
    except TieredError:
        place = BucketBinding()  # damaged, which is for the verification to say
    url = settings.cold.url or place.url
    return Tiers(TierLocations(root, url, cold_options(settings, place), settings.store.mmap))


def _bar() -> Progress:
    """Return a bar on stderr; nothing where that is no terminal."""
    return Progress(
        BarColumn(),
        DownloadColumn(binary_units=True),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
        console=stderr(),
        transient=True,
        disable=not sys.stderr.isatty(),
    )


def _print(report: VerifyReport) -> None:
    for item in report.repairs:
        say(f"repair: {item}")
    if report.problems:
        print_table(
            ("what", "topic", ">partition", ">offsets at risk", "problem"),
            [_row(problem) for problem in report.problems],
        )
    for problem in report.problems:
        say(f"problem: {problem}")
    for unknown in report.unknown:
        say(f"unknown: {unknown}")
    looked = (
        f"{count(report.segments, 'segment')}, {count(report.blocks, 'block')} and "
        f"{count(report.objects, 'object')} looked at, {approximate_size(report.bytes)} read"
    )
    depth = "every byte" if report.deep else "structure only; --deep reads every byte"
    say(
        f"{report.url}: {count(len(report.problems), 'problem')}, {len(report.unknown)} unknown; {looked} ({depth})"
    )


def _row(problem: Problem) -> tuple[str, ...]:
    partition = "-" if problem.partition is None else str(problem.partition)
    offsets = "-" if problem.offsets is None else f"[{problem.offsets[0]}, {problem.offsets[1]})"
    return str(problem.item), problem.topic or "-", partition, offsets, problem.reason
