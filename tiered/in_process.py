"""What ``daemon=True`` answers over HTTP in the writer's own process, where ``daemon.metrics`` names an address."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .metrics import exposition, registry_for
from .passes import Passes
from .settings import DaemonSettings
from .status_page import page, page_state
from .web import Views, Web, read_token

if TYPE_CHECKING:
    from .store import Store


def listen(store: Store, passes: Passes, daemon: DaemonSettings) -> Web | None:
    """Answer for an open store and its passes; None where no address is set.

    Raises
    ------
    ConfigError
        The address is taken, or the token cannot be read.
    """
    if daemon.metrics in (None, "off"):
        return None
    registry: list[Any] = []

    def metrics() -> tuple[bytes, str]:
        if not registry:
            registry.append(registry_for(store, passes))
        return exposition(registry[0])

    views = Views(
        lambda: [f"thread {name} is gone" for name in passes.gone()],
        lambda: ["the bucket does not answer"] if passes.bucket_away else [],
        metrics,
        page,
        lambda: page_state(store, passes),
    )
    return Web.open(daemon.metrics, views, read_token(daemon.token_file))
