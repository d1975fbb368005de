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
    open_to_plan,
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
    """Show the tiers of each range of a topic, its next action and the time of it; change nothing.

    The column next is the action of the first pass at or after its time, if nothing is appended until then; the column
    then is an estimate. The exit code is 1 if something cannot be read.
    """
    with open_to_plan(load_settings(config, path, cold)) as store, spinner() as progress:
        progress.add_task("reading segments and manifests")
        if partition is not None:
            plain_partition(store.topic(topic).meta, partition)
        explanation = explain_topic(store.watched(), topic, partition)
    if as_json:
        print_json(explanation.to_json())
    else:
        for item in explanation.partitions:
            _print_partition(item)
        if explanation.paused:
            say(f"{topic} is {explanation.paused}; until tiered resume, passes do none of this")
    if explanation.problems:
        error_line(explanation.problems[0])
        raise typer.Exit(1)


def _print_partition(explanation: Explanation) -> None:
    title = f"{explanation.topic}/{explanation.partition}"
    if explanation.pieces:
        print_table(
            ("offsets", "where", "state", ">local", ">cold", "last append", "next", "then"),
            [_row(piece, explanation.now_us) for piece in explanation.pieces],
            title=title,
        )
    else:
        say(f"{title}: no records")
    if explanation.scrub is not None:
        say(f"its objects: {explanation.scrub.text(explanation.now_us)}")
    for note in explanation.notes:
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
