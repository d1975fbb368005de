"""``tiered restore``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from ..recovery.restore import restore as restore_store
from ..settings.settings import Settings
from .options import AsJson, ConfigFile, Verbose
from .output import count, iso, print_json, say, spinner
from .read import parse_moment

Url = Annotated[
    str, typer.Argument(metavar="URL", help="The bucket, such as s3://bucket/prefix.", show_default=False)
]
Target = Annotated[
    Path, typer.Argument(metavar="PATH", help="An empty or missing directory.", show_default=False)
]

At = Annotated[
    str | None,
    typer.Option(
        "--at",
        metavar="TIME",
        help="Restore the state at this time: 2025-01-31T12:00:00Z, or a time ago such as 2h; at most sweep.grace ago.",
        show_default=False,
    ),
]


def restore(
    url: Url,
    path: Target,
    at: At = None,
    config: ConfigFile = None,
    as_json: AsJson = False,
    _verbose: Verbose = False,
) -> None:
    """Make a local store from a bucket, and fence the store that wrote to the bucket before.

    No records are downloaded. Records that the old machine had not offloaded are not in the bucket; they stay readable on
    the old machine. Repeat an interrupted restore with the same arguments, but instead of a duration with the time that
    its error message names. With --at, the new store lacks records that were appended later, and has records that were
    removed since.
    """
    moment = None if at is None else parse_moment(at, "--at")
    path = Path(os.path.expanduser(path))  # noqa: PTH111 — as --path does; an unknown user is no error
    with spinner() as progress:
        progress.add_task("reading manifests")
        store = restore_store(url, path, at=moment, settings=Settings.load(config))
    with store:
        topics = {
            name: {
                str(item.partition): [item.start, item.end] for item in store.topic(name).offsets().values()
            }
            for name in store.topics()
        }
    if as_json:
        print_json({"url": url, "path": str(path), "topics": topics})
        return
    records = sum(end - start for partitions in topics.values() for start, end in partitions.values())
    say(
        f"restored {count(len(topics), 'topic')} with {count(records, 'record')}"
        f"{'' if moment is None else f' as of {iso(moment)}'} to {path}; the store that wrote to "
        f"{url} before is fenced"
    )
    empty = [
        f"{name}/{partition}"
        for name, partitions in topics.items()
        for partition, (start, end) in partitions.items()
        if start == end
    ]
    if moment is not None and empty:
        say(f"note: empty as of then: {', '.join(empty)}")
