"""Options that commands share, and opening the store that they name."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer

from ..base.units import printable
from ..cold.object_store.connect import open_object_store
from ..engine.host import Host
from ..errors import StoreLocked, TieredError
from ..flight import open_noticed
from ..flight.wire.serving_file import ServingFile, standing_notice
from ..opening import open_local_store, open_store
from ..settings.settings import Settings
from ..store.interface.store import Store
from ..store.local_store import LocalStore
from ..warm.bucket_binding import read_binding
from ..warm.catalog import Catalog
from ..warm.filesystem import OsFileSystem
from .output import say

log = logging.getLogger("tiered")

SETTINGS_FILE = "tiered.toml"


def _set_up_logging(verbose: bool) -> None:
    """Show warnings of this package, one line each; with ``--verbose`` all log records, also of libraries."""
    root = logging.getLogger()
    for logger in (log, root):
        for old in [item for item in logger.handlers if isinstance(item, (_Handler, logging.NullHandler))]:
            logger.removeHandler(old)
    handler = _Handler()
    if verbose:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        root.addHandler(handler)
        root.setLevel(logging.INFO)
        log.setLevel(logging.DEBUG)
    else:
        handler.setLevel(logging.WARNING)
        handler.setFormatter(_OneLine())
        log.addHandler(handler)
        root.addHandler(logging.NullHandler())  # without a handler, Python prints warnings of libraries


class _Handler(logging.StreamHandler[TextIO]):
    pass


class _OneLine(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return f"{record.levelname.lower()}: {printable(record.getMessage())}"


def _settings_file(ctx: typer.Context, file: Path | None) -> Path | None:
    """Return the given file; print a note if no option names the store and a file of the usual name is not read."""
    # Click handles options in the order of the command line, and missing options last.
    named = ctx.resilient_parsing or any(ctx.params.get(name) is not None for name in ("path", "target"))
    if file is None and not named and Path(SETTINGS_FILE).is_file():
        say(f"note: {SETTINGS_FILE} is here and not read; add --config {SETTINGS_FILE}", err=True)
    return file


ConfigFile = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE",
        help="Read settings from this tiered.toml; by default no file is read.",
        callback=_settings_file,
    ),
]
StorePath = Annotated[
    str | None,
    typer.Option(
        "--path", metavar="PATH", help="Directory of the store, or the URL of its bucket. Default: ./data"
    ),
]
ColdUrl = Annotated[
    str | None,
    typer.Option(
        "--cold",
        metavar="URL",
        help="Cold tier of the store, such as s3://bucket/prefix; the store remembers it.",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Show the log on stderr.", callback=_set_up_logging)]


def complete_topic(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the topics that begin with `incomplete`, for a shell; none of a bucket, so that a key press sends no request."""
    try:
        config, path = ctx.params.get("config") or ctx.params.get("config_file"), ctx.params.get("path")
        root = load_settings(None if config is None else Path(config), path, None).store.path
        if "://" in root:
            return []
        names = Catalog(OsFileSystem(), Path(root)).topics()
    except Exception:  # noqa: BLE001 (a completion has no place for an error message)
        return []
    return [name for name in names if name.startswith(incomplete)]


TopicName = Annotated[
    str,
    typer.Argument(
        metavar="TOPIC", help="Name of the topic.", show_default=False, autocompletion=complete_topic
    ),
]


def overrides_of(path: str | None, cold: str | None) -> dict[str, Any]:
    """Return the settings that the options give, as sections."""
    overrides: dict[str, Any] = {}
    if path is not None:
        overrides["store"] = {"path": path}
    if cold is not None:
        overrides["cold"] = {"url": cold}
    return overrides


def load_settings(config: Path | None, path: str | None, cold: str | None) -> Settings:
    """Merge options over the environment (``TIERED_STORE__PATH``) over the file.

    Raises
    ------
    ConfigError
    """
    return Settings.load(config, **overrides_of(path, cold))


def names_server(path: str) -> bool:
    """Whether a store's path is the URL of a server, perhaps with a mistake."""
    return path.startswith(("grpc:", "grpc+"))


VIEWER = Host(open_bucket=lambda url, options: open_object_store(url, options.for_a_look()))
"""The host of commands that only show something."""


def open_for_reading(settings: Settings) -> Store:
    """Open the store for reading, beside its writer; create nothing."""
    return open_store(settings.store.path, settings=settings, read_only=True)


def open_to_look(settings: Settings) -> Store:
    """Open the store as `open_for_reading` does, for a view: its user waits, so a silent bucket is given up sooner."""
    return open_store(settings.store.path, settings=settings, read_only=True, host=VIEWER)


def open_to_plan(settings: Settings) -> LocalStore:
    """Open the store for plans alone; see `open_to_look`."""
    return open_local_store(settings.store.path, settings=settings, tierer=True, host=VIEWER)


def open_for_writing(settings: Settings, *, daemon: bool = False) -> Store:
    """Open the store as its writer, not through a server; create it if there is none.

    Raises
    ------
    StoreLocked
        Another process is the writer; the message names it, and its address if it serves the store.
    """
    try:
        return open_store(settings.store.path, settings=settings, daemon=daemon)
    except StoreLocked as locked:
        raise _at_server(locked, _notice_of(settings)) from None


def open_for_appending(settings: Settings) -> Store:
    """Open the store as its writer, or through the server that is its writer; create it if there is none."""
    try:
        return open_store(settings.store.path, settings=settings)
    except StoreLocked as locked:
        notice = _notice_of(settings)
        if notice is None or settings.cold.url not in (None, read_binding(_root(settings)).url):
            raise _at_server(locked, notice) from None
        try:
            store = open_noticed(notice, settings, read_only=False)
        except TieredError as error:
            raise _at_server(locked, notice, f"; it cannot be used from here: {error}") from None
        say(f"note: {settings.store.path} is served at {store.url}, and this goes through it", err=True)
        return store


def _at_server(locked: StoreLocked, notice: ServingFile | None, more: str = "") -> StoreLocked:
    return locked if notice is None else StoreLocked(f"{locked}; it is served at {notice.location}{more}")


def _notice_of(settings: Settings) -> ServingFile | None:
    try:
        return standing_notice(_root(settings))
    except (TieredError, OSError) as error:
        log.debug("no server of %s is used: %s", settings.store.path, error)
        return None


def _root(settings: Settings) -> Path:
    return Path(settings.store.path).absolute()


def open_for_tiering(settings: Settings) -> LocalStore:
    """Open the store for plans and passes, beside its writer."""
    return open_local_store(settings.store.path, settings=settings, tierer=True)
