"""The HTTP views of an open store in its own process, for ``daemon.metrics`` and ``flight.metrics``."""

from __future__ import annotations

from typing import Any

from .http import Views, Web, read_token
from .iceberg_catalog import IcebergCatalog
from .metrics import exposition, registry_for
from .status_page import page, page_state
from .watched_store import WatchedStore


def listen(watched: WatchedStore, setting: str, address: str | None) -> Web | None:
    """Serve the views of an open store and of its passes; return None if no address is set.

    Raises
    ------
    ConfigError
        The address is in use, the token cannot be read, or other hosts would need no token.
    """
    if address in (None, "off"):
        return None
    passes = watched.passes
    registry: list[Any] = []

    def metrics() -> tuple[bytes, str]:
        if not registry:
            registry.append(registry_for(watched))
        return exposition(registry[0])

    views = Views(
        lambda: [f"thread {name} is gone" for name in passes.dead_threads()] if passes else [],
        lambda: ["the bucket does not answer"] if passes and passes.bucket_away else [],
        metrics,
        page,
        lambda: page_state(watched),
        lambda: IcebergCatalog(watched.context, watched.topics),
    )
    return Web.open(address, views, read_token(watched.context.settings.daemon.token_file), setting=setting)
