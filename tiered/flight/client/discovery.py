"""The writer that serves a store's directory, as readers of the path find it: by ``serving.json``."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from ...errors import TieredError
from ...settings.settings import Settings
from .. import open_noticed
from ..wire.serving_file import standing_notice

if TYPE_CHECKING:
    from .remote_store import RemoteStore

_log = logging.getLogger("tiered.flight")


def find_server(root: Path, settings: Settings, *, read_only: bool = True) -> RemoteStore | None:
    """Connect to the writer that serves the directory `root`; None where none does, or it cannot be used from here.

    A server that does not answer, wants a token that this process has not, or serves something else, is logged as a warning:
    what the caller reads instead ends where the writer's last flush did. No token is sent.
    """
    try:
        notice = standing_notice(root)
        return None if notice is None else open_noticed(notice, settings, read_only=read_only)
    except (TieredError, OSError) as error:
        _log.warning("%s: its server is not used, so this ends with what is durable: %s", root, error)
        return None
