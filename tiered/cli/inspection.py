"""``tiered inspect``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import typer

from ..base.units import printable_json
from ..cold.object_store.connect import open_object_store
from ..cold.object_store.options import ColdOptions, check_url
from ..cold.object_store.protocol import ObjectStore
from ..errors import ConfigError, ObjectNotFound
from ..format.segment import MAGIC as SEGMENT_MAGIC
from ..settings.settings import Settings
from ..warm.bucket_binding import read_binding
from .describe import (
    Description,
    Row,
    describe_document,
    describe_page,
    describe_segment,
    sibling_head,
    unknown_format,
)
from .describe_object import describe_object
from .options import AsJson, ColdUrl, ConfigFile, StorePath, Verbose, load_settings
from .output import count, json_line, print_facts, print_json, print_table, say, text_of

_PARQUET_MAGIC = b"PAR1"
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
# Of longer tables only the first and last rows are shown; JSON has all.
_ROWS_SHOWN_MAX = 20


def inspect(
    target: Annotated[
        str,
        typer.Argument(
            metavar="FILE|OBJECT",
            help="A file, the URL of an object, or its key in the store's bucket.",
            show_default=False,
        ),
    ],
    records: Annotated[int, typer.Option(metavar="N", help="Show the first N records.", min=0)] = 5,
    config: ConfigFile = None,
    path: StorePath = None,
    cold: ColdUrl = None,
    as_json: AsJson = False,
    _verbose: Verbose = False,
) -> None:
    """Show the content of a segment file, a cold object, a manifest or a document.

    The command needs no store: it reads header, facts, index and first records from the file or object alone.
    """
    description = _describe(target, records, load_settings(config, path, cold))
    if as_json:
        print_json(_to_json(description))
    else:
        _print(description)


def _describe(target: str, records: int, settings: Settings) -> Description:
    local = Path(urlsplit(target).path if target.startswith("file://") else target)
    if ("://" not in target or target.startswith("file://")) and local.exists():
        # Not resolved for a pipe: its name in /dev/fd leads to no path.
        return _describe_file(local.resolve() if local.is_file() else local, records)
    if "://" in target:
        check_url(target)
        folder, _, name = target.rpartition("/")
        parts = 2 if folder.endswith("/pages") else 1  # so that the head of a page is below `folder`
        folder, name = target.rsplit("/", parts)[0], "/".join(target.rsplit("/", parts)[1:])
        return _describe_object(open_object_store(folder, _options(settings)), name, records)
    binding = read_binding(Path(settings.store.path))
    url = settings.cold.url or binding.url
    if url is None:
        raise ConfigError(f"there is no file {target}; for an object give its URL, or --cold and its key")
    options = _options(settings, binding.endpoint_url, binding.region)
    return _describe_object(open_object_store(url, options), target, records)


def _options(settings: Settings, endpoint_url: str | None = None, region: str | None = None) -> ColdOptions:
    return ColdOptions(
        endpoint_url=settings.cold.endpoint_url or endpoint_url, region=settings.cold.region or region
    )


def _describe_file(path: Path, records: int) -> Description:
    if path.is_dir():
        raise ConfigError(f"{path} is a directory; name a file in it")
    if not path.is_file():
        raise ConfigError(f"{path} is no regular file, and a pipe has no end to read from; name a file")
    with path.open("rb") as file:
        magic = file.read(4)
    if magic == SEGMENT_MAGIC:
        return describe_segment(path, records)
    parts = 2 if path.parent.name == "pages" else 1
    root = path.parents[parts - 1]
    return _describe_object(open_object_store(f"file://{root}"), path.relative_to(root).as_posix(), records)


def _describe_object(store: ObjectStore, key: str, records: int) -> Description:
    where = f"{store.url.rstrip('/')}/{key}"
    try:
        size = store.stat(key).size
        magic = store.get_range(key, 0, min(size, 4))
    except ObjectNotFound:
        raise ConfigError(f"there is no object {where}") from None
    if magic == _PARQUET_MAGIC:
        return describe_object(store, key, records)
    if magic == _ZSTD_MAGIC:
        return describe_page(store.get(key).data, where, sibling_head(store, key))
    if magic.startswith(b"{"):
        return describe_document(store.get(key).data, where)
    raise unknown_format(where)


def _to_json(description: Description) -> Row:
    return {
        "kind": description.kind,
        "where": description.where,
        **description.facts,
        **{title.replace(" ", "_"): list(rows) for title, rows in description.tables.items()},
        "records_shown": list(description.records),
    }


def _print(description: Description) -> None:
    say(f"{description.kind} {description.where}\n")
    print_facts(description.facts)
    for title, rows in description.tables.items():
        if rows:
            say()
            _print_rows(title, rows)
    if description.records:
        say(f"\nfirst {count(len(description.records), 'record')}")
        for row in description.records:
            say(f"  {printable_json(json_line(row))}")


def _print_rows(title: str, rows: Sequence[Row]) -> None:
    names = list(rows[0])
    right = {name for name in names if isinstance(rows[0][name], int) and not name.endswith("_us")}
    left_out = max(0, len(rows) - _ROWS_SHOWN_MAX)
    half = _ROWS_SHOWN_MAX // 2
    texts: list[Sequence[str]] = [_cells(names, row) for row in (rows[:half] if left_out else rows)]
    if left_out:
        texts.append(["…"] + [""] * (len(names) - 1))
        texts += [_cells(names, row) for row in rows[-half:]]
    heads = [f"{'>' if name in right else ''}{name.removesuffix('_us').replace('_', ' ')}" for name in names]
    print_table(heads, texts, title=f"{title} ({len(rows)})")


def _cells(names: Sequence[str], row: Row) -> list[str]:
    return [_cell(name, row.get(name)) for name in names]


def _cell(name: str, value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and name.endswith("bytes") else text_of(name, value)
