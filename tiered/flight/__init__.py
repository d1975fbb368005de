"""Arrow Flight: serve a store to other processes and hosts, and use one that is served.

Importing this gives `Store.serve` and ``tiered.open("grpc://…")`` what they need. pyarrow's Flight is loaded at the first
use of either: some builds of pyarrow lack it, and most processes never speak it.

Other packages import `client` and `wire`.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ..errors import ConfigError
from ..store.network import Network, Server, use_network

if TYPE_CHECKING:
    from ..settings.settings import Settings
    from ..store.local_store import Store
    from .client.remote_store import RemoteStore
    from .wire.serving_file import Notice


def _loaded(name: str) -> Any:
    try:
        return importlib.import_module(name, __package__)
    except ImportError as error:
        if (error.name or "").startswith("pyarrow"):
            raise ConfigError(
                f"this pyarrow has no Arrow Flight ({error}); install pyarrow from PyPI, or conda's full package"
            ) from None
        raise


def _serve(store: Store, listen: str, **options: Any) -> Server:
    server: Server = _loaded(".server.serve").serve(store, listen, **options)
    return server


def _connect(url: str, *arguments: Any, **options: Any) -> Store:
    store: Store = _loaded(".client.remote_store").connect(url, *arguments, **options)
    return store


def open_noticed(notice: Notice, settings: Settings, *, read_only: bool) -> RemoteStore:
    """See `remote_store.open_noticed`."""
    store: RemoteStore = _loaded(".client.remote_store").open_noticed(notice, settings, read_only=read_only)
    return store


use_network(Network(_serve, _connect))

__all__ = ["Server"]
