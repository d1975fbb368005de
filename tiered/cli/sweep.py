"""``tiered sweep``."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

import typer

from ..base.units import approximate_size, format_duration
from ..cold.upkeep.sweep import SweepReport
from .options import AsJson, ColdUrl, ConfigFile, StorePath, Verbose, load_settings, open_for_tiering
from .output import count, error_line, print_json, print_table, say, size, spinner

DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be deleted, and delete nothing.")]


def sweep(
    config: ConfigFile = None,
    path: StorePath = None,
    cold: ColdUrl = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
    _verbose: Verbose = False,
) -> None:
    """Delete orphans from the bucket: objects that no manifest has named for sweep.grace and no lease covers.

    Orphans are leftovers of interrupted uploads, replaced objects, objects removed by retention or delete-before, and the
    objects of deleted topics. The exit code is 1 if a partition cannot be read; the sweep deletes nothing of it.
    """
    with open_for_tiering(load_settings(config, path, cold)) as store, spinner() as progress:
        progress.add_task("reading objects and manifests")
        report = store.sweep(dry_run=dry_run)
        bucket = store.context.tiers.has_cold
    if as_json:
        print_json(report.to_json())
    elif not bucket:
        say("the store has no bucket, so there is nothing to sweep")
    else:
        _print_report(report)
    if report.problems:
        error_line(report.problems[0])
        raise typer.Exit(1)


def _print_report(report: SweepReport) -> None:
    if report.parts:
        print_table(
            (
                "topic",
                ">partition",
                ">to delete" if report.dry_run else ">deleted",
                ">size",
                ">waiting",
                "note",
            ),
            [
                (
                    part.topic,
                    "table" if part.table else "deleted" if part.partition is None else str(part.partition),
                    f"{len(part.deleted):,}",
                    size(part.bytes),
                    f"{part.waiting:,}",
                    part.problem or _note(part.left, len(part.uploads), part.kept),
                )
                for part in report.parts
            ],
        )
    verb = "would be deleted" if report.dry_run else "deleted"
    waiting = sum(part.waiting for part in report.parts)
    say(
        f"{count(report.objects, 'object')} {verb}, {approximate_size(report.bytes)}; {waiting:,} within the grace of "
        f"{format_duration(int(report.grace_seconds * 1e6))}"
    )
    if report.leased_since_seconds is not None:
        since = datetime.fromtimestamp(report.leased_since_seconds, UTC)
        say(f"a reader's lease keeps the orphans since {since:%Y-%m-%d %H:%M:%S} UTC")


def _note(left: int, uploads: int, named_by_table: int) -> str:
    notes = (
        (left, f"{left:,} left for the next run"),
        (uploads, count(uploads, "unfinished upload")),
        (named_by_table, f"{count(named_by_table, 'object')} kept for the table"),
    )
    return ", ".join(note for number, note in notes if number)
