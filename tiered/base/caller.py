"""The user and host of this process, which documents name as the origin of a request."""

from __future__ import annotations

import getpass
import os
import socket


def whoami() -> str:
    """Return user and host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())  # a container's user need not have a name
    return f"{user}@{socket.gethostname()}"
