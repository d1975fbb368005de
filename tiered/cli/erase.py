"""``tiered erase`` and ``tiered erasures``: remove the records of some keys from every tier."""

from __future__ import annotations

import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.types as pt
import typer

from ..base.units import approximate_size
from ..cold.object_store.protocol import KeepsVersions, VersionRule
from ..engine.erase import erased_column, erased_values
from ..engine.host import wall_clock_us
from ..errors import ColdStorageError, ConfigError, CorruptionError
from ..format.erasure import VALUES_MAX
from ..format.timestamps import to_datetime
from ..policies.cost import COMMIT, Requests, estimate, upload_requests
from ..settings.settings import Settings
from ..store.interface.erasure import Erasure
from ..store.interface.topic import Topic
from .changes import Yes, confirm, open_on_host
from .options import (
    AsJson,
    ColdUrl,
    ConfigFile,
    StorePath,
    TopicName,
    Verbose,
    load_settings,
    open_for_reading,
    open_for_tiering,
)
from .output import count, print_json, print_table, say

_KEYS_BYTES_MAX = 64 << 20


@dataclass(frozen=True, slots=True)
class _Preview:
    """What an erasure would do now: records that go, objects in the bucket with such records, and the requests.

    ``not_offloaded`` of the records are not in the bucket yet: their objects are made first, and then written again.
    ``version_rule`` is the rule of the bucket by which old versions go where these keys may not delete them.
    """

    topic: str
    column: str
    values: int
    records: int
    not_offloaded: int
    objects: int
    bytes: int
    requests: Requests
    usd: float
    version_rule: VersionRule | None


def erase(
    topic: TopicName,
    keys_file: Annotated[
        Path,
        typer.Option(metavar="FILE", help="The keys, one a line; - for standard input."),
    ],
    column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="Compare this column. Default: the topic's key.", show_default=False
        ),
    ] = None,
    reason: Annotated[
        str, typer.Option(metavar="TEXT", help="For the report, which stays: write no personal data.")
    ] = "",
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Count records, objects and requests, and erase nothing.")
    ] = False,
    yes: Yes = False,
    config: ConfigFile = None,
    path: StorePath = None,
    cold: ColdUrl = None,
    as_json: AsJson = False,
    _verbose: Verbose = False,
) -> None:
    """Remove all records with some keys, in all partitions, from every tier, for good.

    An erasure covers the records that the topic has now, and no later ones. Passes, such as those of the daemon, carry it
    out, which takes at least sweep.grace. tiered erasures shows the progress.
    """
    lines = read_lines(keys_file)
    with open_on_host(config, path, cold) as store:
        handle = store.topic(topic)
        field = erased_column(handle.opened, column)
        values = values_of(field, lines)
        erased_values(field, values)  # a dry run refuses what the call would
        preview = None
        try:
            preview = _preview(handle, field, values)
        except (ColdStorageError, CorruptionError) as error:
            # The call needs neither the bucket nor the records.
            if dry_run:
                raise
            say(f"the records are not counted: {error}", err=True)
        if dry_run and preview is not None:
            _print_preview(preview, as_json)
            return
        records = None if preview is None else count(preview.records, "record")
        what = f"erase {records or 'all records'} with {count(len(values), 'value')} of {field.name}"
        confirm(f"{what} from topic {topic} of {store.url}", yes)
        erasure = handle.erase(column=field.name, values=values, reason=reason)
        if as_json:
            print_json({**erasure.to_json(), "store": store.url})
        else:
            say(
                f"erasure {erasure.number} of topic {topic}: {records or 'its records'} will go with the next passes; "
                f"done by {_minute(erasure.entry.deadline_us)} at the latest"
            )


def erasures(
    give_up: Annotated[
        int | None,
        typer.Option(
            metavar="NUMBER",
            min=1,
            help="Give up this one, whose values are lost: its records may stay for ever.",
            show_default=False,
        ),
    ] = None,
    yes: Yes = False,
    config: ConfigFile = None,
    path: StorePath = None,
    cold: ColdUrl = None,
    as_json: AsJson = False,
    _verbose: Verbose = False,
) -> None:
    """Show the erasures of a store, and what the open ones wait for.

    The exit code is 1 if one is open beyond its deadline.
    """
    if give_up is not None:
        _give_up(load_settings(config, path, cold), give_up, yes, as_json)
        return
    with open_for_reading(load_settings(config, path, cold)) as store:
        listed = store.erasures()
        now_us = wall_clock_us()
    late = [erasure for erasure in listed if erasure.entry.is_late(now_us)]
    if as_json:
        print_json({"erasures": [erasure.to_json() for erasure in listed]})
    elif not listed:
        say("nothing was ever erased")
    else:
        print_table(
            (
                ">number",
                "topic",
                "column",
                ">values",
                "called",
                "by",
                "state",
                ">records",
                "deadline",
                "reason",
            ),
            [_row(erasure) for erasure in listed],
        )
        for erasure in listed:
            if erasure.waits_for and erasure.entry.is_open:
                say(f"erasure {erasure.number} waits: {erasure.waits_for}")
        for erasure in late:
            say(
                f"erasure {erasure.number} is late: it was to be done by {_minute(erasure.entry.deadline_us)}"
            )
    if late:
        raise typer.Exit(1)


def _give_up(settings: Settings, number: int, yes: bool, as_json: bool) -> None:
    with open_for_tiering(settings) as store:
        erasure = next((item for item in store.erasures() if item.number == number), None)
        if erasure is None:
            raise ConfigError(f"the store {store.url} has no erasure {number}; see tiered erasures")
        confirm(
            f"give up erasure {number} of topic {erasure.topic}, whose records may then stay for ever", yes
        )
        erasure.give_up()
        if as_json:
            print_json({**erasure.to_json(), "store": store.url})
        else:
            say(f"erasure {number} of topic {erasure.topic} is given up: its records may be there")


def _minute(microseconds: int) -> str:
    return f"{to_datetime(microseconds):%Y-%m-%d %H:%M} UTC"


def _row(erasure: Erasure) -> tuple[str, ...]:
    entry = erasure.entry
    ended_us = entry.given_up_us if entry.done_us is None else entry.done_us
    state = entry.state if ended_us is None else f"{entry.state} {_minute(ended_us)}"
    return (
        str(entry.number), entry.topic, entry.column, f"{entry.values:,}", _minute(entry.called_us), entry.caller,
        state, f"{entry.rows:,}", _minute(entry.deadline_us), entry.reason,
    )  # fmt: skip


def read_lines(path: Path) -> list[str]:
    """Return the lines of a file of keys that are not empty; - is standard input."""
    if str(path) == "-":
        data = sys.stdin.buffer.read(_KEYS_BYTES_MAX + 1)
    else:
        with path.open("rb") as file:
            data = file.read(_KEYS_BYTES_MAX + 1)
    if len(data) > _KEYS_BYTES_MAX:
        raise ConfigError(
            f"{path} has more than {_KEYS_BYTES_MAX} bytes; divide the keys among several erasures"
        )
    try:
        # A key may hold any character but the end of a line; some editors begin a file by a byte order mark.
        lines = [line.removesuffix("\r") for line in data.decode("utf-8-sig").split("\n")]
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is not text in UTF-8 ({error.reason} at byte {error.start})") from None
    lines = [line for line in lines if line]
    if len(lines) > VALUES_MAX:
        raise ConfigError(f"{path} has more than {VALUES_MAX:,} keys; divide them among several erasures")
    return lines


def values_of(field: pa.Field, lines: list[str]) -> list[Any]:
    """Return lines as values of a column: text as it stands, all else as Arrow reads it."""
    if pt.is_string(field.type):
        return list(lines)
    if pt.is_binary(field.type):
        return [line.encode() for line in lines]
    try:
        values: list[Any] = pa.array(lines, pa.string()).cast(field.type).to_pylist()
    except pa.ArrowException as error:
        raise ConfigError(f"a key does not fit column {field.name!r} of type {field.type}: {error}") from None
    return values


def _preview(topic: Topic, field: pa.Field, values: list[Any]) -> _Preview:
    tiers = topic.tiers
    records = not_offloaded = objects = size = read = 0
    if values:
        for partition in range(topic.partitions):
            scan = topic.scan(partition, columns=["offset"], filter=[(field.name, "in", values)])
            hits = scan.to_arrow()["offset"].to_numpy()
            records += len(hits)
            manifest = tiers.cold(topic.meta, partition) if tiers is not None and tiers.has_cold else None
            loaded = manifest.load() if manifest is not None else None
            end = 0 if loaded is None else loaded.head.end_offset
            not_offloaded += len(hits) - int(np.searchsorted(hits, end))
            for entry in manifest.entries(loaded.head) if manifest is not None and loaded is not None else ():
                read += 1
                low, high = np.searchsorted(hits, [entry.base_offset, entry.end_offset])
                if low < high:
                    objects, size = objects + 1, size + entry.bytes
    requests = upload_requests(size) + Requests(COMMIT.writes * objects, COMMIT.reads * objects + 6 * read)
    return _Preview(
        topic.name,
        field.name,
        len(values),
        records,
        not_offloaded,
        objects,
        size,
        requests,
        estimate(requests, 0).one_off_usd,
        _version_rule(topic),
    )


def _version_rule(topic: Topic) -> VersionRule | None:
    tiers = topic.tiers
    store = tiers.object_store if tiers is not None and tiers.has_cold else None
    return store.version_rule() if isinstance(store, KeepsVersions) else None


def _print_preview(preview: _Preview, as_json: bool) -> None:
    if as_json:
        print_json({**asdict(preview), "dry_run": True})
        return
    say(
        f"topic {preview.topic}: {count(preview.records, 'record')} would be erased; "
        f"{count(preview.objects, 'object')} of {approximate_size(preview.bytes)} would be written again, by about "
        f"{preview.requests.writes + preview.requests.reads:,} requests, ${preview.usd:.4f} by list price"
    )
    if preview.not_offloaded:
        say(
            f"{count(preview.not_offloaded, 'record')} of these not in the bucket yet: passes offload them first, and then "
            "write their objects again, too"
        )
    if preview.version_rule is not None:
        say(
            f"old versions of objects that these keys may not delete go by lifecycle rule {preview.version_rule.id!r} of the "
            f"bucket after {preview.version_rule.days} days"
        )
