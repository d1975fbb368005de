"""Arrow Flight: serve a store to other processes and hosts, and use one that is served.

pyarrow's Flight is loaded at the first use: some builds of pyarrow lack it, and most processes never speak it.

Other packages import `client` and `wire`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError

if TYPE_CHECKING:
    from ..engine.host import Host
    from ..settings.settings import Settings
    from ..store.interface.server import Server
    from ..store.local_store import LocalStore
    from .client.remote_store import RemoteStore
    from .wire.serving_file import ServingFile


def _loaded(name: str) -> Any:
    try:
        return importlib.import_module(name, __package__)
    except ImportError as error:
        if (error.name or "").startswith("pyarrow"):
            raise ConfigError(
                f"this pyarrow has no Arrow Flight ({error}); install pyarrow from PyPI, or conda's full package"
            ) from None
        raise


def serve(store: LocalStore, listen: str | None, **options: Any) -> Server:
    """See `server.serve.serve`."""
    server: Server = _loaded(".server.serve").serve(store, listen, **options)
    return server


def connect(
    url: str, settings: Settings, host: Host, *, read_only: bool = False, token: str | None = None
) -> RemoteStore:
    """See `remote_store.connect`."""
    store: RemoteStore = _loaded(".client.remote_store").connect(
        url, settings, host, read_only=read_only, token=token
    )
    return store


def open_noticed(notice: ServingFile, settings: Settings, *, read_only: bool) -> RemoteStore:
    """See `remote_store.open_noticed`."""
    store: RemoteStore = _loaded(".client.remote_store").open_noticed(notice, settings, read_only=read_only)
    return store
