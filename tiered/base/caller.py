"""The user, the host and the process that documents name as the origin of a request, or as the owner of something."""

from __future__ import annotations

import getpass
import os
import re
import socket

_PROCESS = re.compile(r"(?P<host>.+), process (?P<number>[0-9]{1,9})")


def whoami() -> str:
    """Return user and host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())  # a container's user need not have a name
    return f"{user}@{socket.gethostname()}"


def this_process() -> str:
    """Return host and process, as an owner is named."""
    return f"{socket.gethostname()}, process {os.getpid()}"


def has_ended(process: str) -> bool:
    """Whether a process that was named by `this_process` has surely ended: it was one of this host, and is there no more.

    One with the number of this process has ended, too: in containers numbers come again.
    """
    found = _PROCESS.fullmatch(process)
    if found is None or found["host"] != socket.gethostname():
        return False
    number = int(found["number"])
    try:
        os.kill(number, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False  # another user's
    return number == os.getpid()
