"""Discovery: a reader of a store's directory finds the writer that serves it by ``serving.json``."""

from __future__ import annotations

import logging
from pathlib import Path

from ...errors import TieredError
from ...settings.settings import Settings
from ..wire.serving_file import standing_notice
from .remote_store import RemoteStore, open_noticed

_log = logging.getLogger("tiered.flight")


def find_server(root: Path, settings: Settings) -> RemoteStore | None:
    """Connect to the writer that serves the directory `root`; None if no writer does, or if it cannot be used.

    A server that does not answer, that wants a token which this process lacks, or that serves another store is logged as a
    warning: what the caller reads instead ends at the writer's last flush. No token is sent.
    """
    try:
        notice = standing_notice(root)
        return None if notice is None else open_noticed(notice, settings, read_only=True)
    except (TieredError, OSError) as error:
        _log.warning("%s: its server is not used, so this ends with what is durable: %s", root, error)
        return None
