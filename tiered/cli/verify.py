"""``tiered verify``."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

from ..base.units import approximate_size, printable
from ..cold.manifest.erasures import read_ledger
from ..cold.manifest.store_documents import StoreDocuments
from ..engine.erase import erased_column
from ..engine.locations import cold_options
from ..errors import ConfigError, ReadOnly, TieredError, TopicNotFound
from ..format.erasure import LedgerEntry
from ..format.schema import TRANSACTIONS_TOPIC
from ..reader.filters import parse_filter
from ..reader.locations import TierLocations
from ..reader.tiers import Tiers
from ..repair.repair import repair_store
from ..settings.settings import Settings
from ..verify.damage_memory import DamageMemory
from ..verify.erasure_search import ErasedSearch
from ..verify.report import Problem, VerifyReport
from ..verify.verifier import verify_store
from ..warm.bucket_binding import BucketBinding, read_binding
from ..warm.catalog import STORE_FILE, TOPICS_DIRECTORY
from ..warm.erasure_ledger import ErasureLedger
from ..warm.filesystem import OsFileSystem
from .erase import read_lines, values_of
from .options import (
    AsJson,
    ColdUrl,
    ConfigFile,
    StorePath,
    Verbose,
    load_settings,
    names_server,
    open_for_reading,
)
from .output import count, error_line, print_json, print_table, say, stderr


def verify(
    deep: Annotated[
        bool, typer.Option("--deep", help="Read every byte, and compare records that are in two tiers.")
    ] = False,
    repair: Annotated[bool, typer.Option("--repair", help="Make all repairs that lose nothing.")] = False,
    rebuild_manifest: Annotated[
        bool,
        typer.Option(
            "--rebuild-manifest",
            help="With --repair: also publish a lost manifest that was rebuilt from the objects. Removed records may "
            "reappear, so without this option the manifest is only shown.",
        ),
    ] = False,
    drop_lost_transactions: Annotated[
        bool,
        typer.Option(
            "--drop-lost-transactions",
            help="With --repair: go on without records of the transaction log that are damaged and not in the bucket. "
            "Positions of consumers go back, and transactions of these records may be in some partitions only.",
        ),
    ] = False,
    erased: Annotated[
        str | None,
        typer.Option(
            metavar="TOPIC",
            help="Instead: search every file and object that may hold records of a topic, also those that nothing names, for the "
            "keys in --keys-file. Records that were appended after the last erasure of this column do not count.",
        ),
    ] = None,
    keys_file: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="With --erased: the keys, one a line; - for standard input."),
    ] = None,
    column: Annotated[
        str | None, typer.Option(metavar="NAME", help="With --erased: the column. Default: the topic's key.")
    ] = None,
    config: ConfigFile = None,
    path: StorePath = None,
    cold: ColdUrl = None,
    as_json: AsJson = False,
    _verbose: Verbose = False,
) -> None:
    """Check the files and objects of a store and its bucket for damage.

    The command can run beside writers and passes, on a store that is too damaged to open, and while the bucket does not
    answer: it lists parts that it cannot read as unknown. The exit code is 1 if there is a problem, or with --repair if one
    is left, and if something is unknown. A repair needs exclusive access to the store, and keeps every damaged original.
    """
    if (rebuild_manifest or drop_lost_transactions) and not repair:
        raise ConfigError("--rebuild-manifest and --drop-lost-transactions belong to --repair")
    if erased is not None or keys_file is not None or column is not None:
        if erased is None or keys_file is None or repair or deep:
            raise ConfigError("--erased TOPIC needs --keys-file, and goes with --column only")
        _search(load_settings(config, path, cold), erased, read_lines(keys_file), column, as_json)
        return
    settings = load_settings(config, path, cold)
    tiers = open_tiers(settings)
    with _bar() as bar:
        task = bar.add_task("", total=None)

        def progress(where: str, read: int) -> None:
            bar.update(task, advance=read, description=printable(where.rpartition("/")[2]))

        try:
            if repair:
                report = repair_store(
                    tiers,
                    deep=deep,
                    rebuild_manifest=rebuild_manifest,
                    drop_lost_transactions=drop_lost_transactions,
                    progress=progress,
                    policy_for=settings.policy_for,
                )
            else:
                report = verify_store(tiers, deep=deep, progress=progress, memory=DamageMemory())
        finally:
            tiers.close()
    if as_json:
        print_json(report.to_json())
    else:
        _print(report)
    if report.problems:
        error_line(f"{count(len(report.problems), 'problem')} found: {report.problems[0]}")
    elif report.unknown:
        error_line(f"not everything could be checked: {report.unknown[0]}")
    if report.problems or report.unknown:
        raise typer.Exit(1)


def _search(settings: Settings, name: str, lines: list[str], column: str | None, as_json: bool) -> None:
    """Search for records that should be gone; exit with 1 if there are any, or something cannot be searched."""
    with open_for_reading(settings) as store:
        topic = store.topic(name)
        if topic.tiers is None:
            raise ReadOnly(
                f"{store.url} is a server; search on the host of its store, or with the URL of its bucket"
            )
        field = erased_column(topic.opened, column)
        if not lines:
            raise ConfigError("a search without keys finds nothing; give at least one")
        called = [
            entry
            for entry in _ledger(topic.tiers)
            if entry.topic_id == topic.meta.topic_id and entry.column == field.name
        ]
        condition = parse_filter(topic.meta.schema, (field.name, "in", values_of(field, lines)))
        try:
            log = store.topic(TRANSACTIONS_TOPIC).meta
        except TopicNotFound:
            log = None
        search = ErasedSearch(
            topic.tiers,
            topic.meta,
            condition,
            called,
            log,
            grace_seconds=settings.sweep.grace.total_seconds(),
        )
        traces = list(search.traces())
    if as_json:
        print_json({"traces": list(map(asdict, traces)), "files": search.files, "objects": search.objects})
    else:
        for trace in traces:
            held = "cannot be searched" if trace.records is None else count(trace.records, "record")
            say(f"{trace.where}: {held}{trace.reason and f' ({trace.reason})'}")
        say(
            f"topic {name}: {count(len(traces), 'place')} with such records; "
            f"{count(search.files, 'file')} and {count(search.objects, 'object')} searched"
        )
    if traces:
        raise typer.Exit(1)


def _ledger(tiers: Tiers) -> tuple[LedgerEntry, ...]:
    """Return all erasures: from the store's directory, else from the bucket."""
    if tiers.locations.root is not None:
        return ErasureLedger(OsFileSystem(), tiers.locations.root).read()
    return read_ledger(StoreDocuments(tiers.object_store))


def open_tiers(settings: Settings) -> Tiers:
    """Return the access to a store's tiers; it works for a damaged store, too."""
    text = str(settings.store.path)
    if names_server(text):
        raise ReadOnly(f"{text} is a server; verify on the host of its store, or with the URL of its bucket")
    if "://" in text:
        binding = BucketBinding(text, settings.cold.endpoint_url, settings.cold.region)
        return Tiers(TierLocations(None, text, cold_options(settings, binding)))
    root = Path(text).absolute()
    if not (root / STORE_FILE).exists() and not (root / TOPICS_DIRECTORY).exists():
        raise ConfigError(f"there is no store at {root}; check the path")
    try:
        binding = read_binding(root)
    except TieredError:
        binding = BucketBinding()  # the verification reports the damaged binding
    url = settings.cold.url or binding.url
    return Tiers(TierLocations(root, url, cold_options(settings, binding), settings.store.mmap))


def _bar() -> Progress:
    """Return a progress bar on stderr; it shows nothing if stderr is no terminal."""
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
    checked = (
        f"{count(report.segments, 'segment')}, {count(report.blocks, 'block')} and "
        f"{count(report.objects, 'object')} checked, {approximate_size(report.bytes)} read"
    )
    depth = "every byte" if report.deep else "structure only; --deep reads every byte"
    say(
        f"{report.url}: {count(len(report.problems), 'problem')}, {len(report.unknown)} unknown; {checked} ({depth})"
    )


def _row(problem: Problem) -> tuple[str, ...]:
    partition = "-" if problem.partition is None else str(problem.partition)
    offsets = "-" if problem.offsets is None else f"[{problem.offsets[0]}, {problem.offsets[1]})"
    return str(problem.item), problem.topic or "-", partition, offsets, problem.reason
