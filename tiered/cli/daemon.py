"""``tiered daemon``."""

from __future__ import annotations

import os
import sys
from enum import Enum
from typing import Annotated, Any

import typer

from ..daemon.logs import set_up_logging, take_down_logging
from ..daemon.notify import Notifier
from ..daemon.service import Daemon
from ..errors import ConfigError
from ..settings.settings import Settings
from .options import ColdUrl, ConfigFile, StorePath, overrides_of


class LogKind(Enum):
    """The format of the log."""

    human = "human"
    json = "json"


def daemon(
    config: ConfigFile = None,
    path: StorePath = None,
    cold: ColdUrl = None,
    log: Annotated[
        LogKind | None,
        typer.Option(
            "--log", help="Format of the log: for people, or JSON. Default: daemon.log", show_default=False
        ),
    ] = None,
) -> None:
    """Run passes beside the writer until SIGTERM: full passes by schedule, tail passes every offload.tail_interval.

    The daemon waits until the store exists, and until another daemon of the store ends. After SIGTERM or SIGINT, running
    actions may end within daemon.stop_deadline; a second signal ends the daemon at once. SIGHUP reads the configuration
    again. The log goes to stderr. The address daemon.metrics, by default 127.0.0.1:9464, serves /healthz, /readyz and
    /metrics.
    """
    overrides: dict[str, Any] = overrides_of(path, cold)
    if log is not None:
        overrides["daemon"] = {"log": log.value}

    def load_again() -> Settings:
        if config is not None and config.exists() and not config.is_file():
            raise ConfigError(f"{config} cannot be read again, as it is no regular file; restart the daemon")
        return Settings.load(config, **overrides)

    settings = Settings.load(config, **overrides)
    handler = set_up_logging(settings.daemon.log, sys.stderr)
    try:
        code = Daemon(load_again, settings=settings, notifier=Notifier.of(os.environ)).run()
    finally:
        take_down_logging(handler)
    raise typer.Exit(code)
