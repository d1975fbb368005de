"""``tiered explain``."""

from __future__ import annotations

from typing import Annotated

import typer

from ..base.units import approximate_size, format_duration
from ..monitor.explain import explain_topic
from ..policies.forecast.explain import Explanation, OffsetRun
from ..reader.query import plain_partition
from .options import (
    AsJson,
    ColdUrl,
    ConfigFile,
    StorePath,
    TopicName,
    Verbose,
    load_settings,
    open_for_tiering,
)
from .output import error_line, print_json, print_table, say, spinner


def explain(
    topic: TopicName,
    partition: Annotated[
        int | None, typer.Option(metavar="N", help="Only this partition. Default: all", min=0)
    ] = None,
    config: ConfigFile = None,
    path: StorePath = None,
    cold: ColdUrl = None,
    as_json: AsJson = False,
    _verbose: Verbose = False,
) -> None:
    """Show where each piece of a topic is, what becomes of it next and when; do nothing.

    Next is what the first pass from that time on does, if nothing is appended until then; what comes after it is an
    estimate. The exit code is 1 if something could not be looked at.
    """
    with open_for_tiering(load_settings(config, path, cold)) as store, spinner() as progress:
        progress.add_task("looking at segments and manifests")
        if partition is not None:
            plain_partition(store.topic(topic).meta, partition)
        found = explain_topic(store.watched(), topic, partition)
    if as_json:
        print_json(found.to_json())
    else:
        for item in found.partitions:
            _print_partition(item)
        if found.paused:
            say(f"{topic} is {found.paused}; until tiered resume, passes do none of this")
    if found.problems:
        error_line(found.problems[0])
        raise typer.Exit(1)


def _print_partition(item: Explanation) -> None:
    title = f"{item.topic}/{item.partition}"
    if item.pieces:
        print_table(
            ("offsets", "where", "state", ">local", ">cold", "last append", "next", "then"),
            [_row(piece, item.now_us) for piece in item.pieces],
            title=title,
        )
    else:
        say(f"{title}: no records")
    if item.scrub is not None:
        say(f"its objects: {item.scrub.text(item.now_us)}")
    for note in item.notes:
        say(f"note: {note}")


def _row(piece: OffsetRun, now_us: int) -> tuple[str, ...]:
    where = "+".join(piece.tiers)
    if piece.cold_end_offset is not None and piece.cold_end_offset < piece.end_offset:
        where += f" to {piece.cold_end_offset}"
    after = "; ".join(step.text(now_us) for step in piece.then)
    return (
        f"[{piece.base_offset}, {piece.end_offset})",
        where,
        piece.state,
        approximate_size(piece.local_bytes) if piece.local_bytes else "-",
        approximate_size(piece.cold_bytes) if piece.cold_bytes else "-",
        f"{format_duration(max(0, now_us - piece.last_append_us), parts=2)} ago",
        "; ".join(filter(None, [piece.next.text(now_us) if piece.next else "stays as it is", piece.hold])),
        after or "-",
    )
