"""The refusal of gRPC in a forked child whose parent used it: there each call may wait for ever."""

from __future__ import annotations

import os

from ...errors import ConfigError

_used = False
_inherited = False


def use_grpc() -> None:
    """Record that this process uses gRPC. Its threads outlive the clients and servers that are closed.

    Raises
    ------
    ConfigError
        This process was forked from one that used gRPC.
    """
    global _used
    if _inherited:
        raise ConfigError(
            "this process was forked from one that used Arrow Flight, which does not outlive that: start processes "
            "by multiprocessing's spawn or forkserver, or fork before the first server or connection"
        )
    _used = True


def _after_in_child() -> None:
    global _inherited
    _inherited = _used


os.register_at_fork(after_in_child=_after_in_child)
