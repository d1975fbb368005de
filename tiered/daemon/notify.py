"""Messages to systemd in the protocol of sd_notify(3): datagrams to the socket in ``NOTIFY_SOCKET``."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping

# How long a message about a change of state may wait for a slow manager.
_PATIENCE_SECONDS = 1.0

log = logging.getLogger("tiered.daemon.notify")


class Notifier:
    """Sends states to a service manager; does nothing without one.

    Parameters
    ----------
    address
        A path, or ``@name`` in the abstract namespace; empty without a manager.
    watchdog_seconds
        The longest time between two messages to the watchdog, or None.
    """

    def __init__(self, address: str = "", watchdog_seconds: float | None = None) -> None:
        self._address = f"\0{address[1:]}" if address.startswith("@") else address
        self.watchdog_seconds = watchdog_seconds
        self._status = ""

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Notifier:
        """Return the notifier of a process with these variables."""
        pid, period = environment.get("WATCHDOG_PID"), environment.get("WATCHDOG_USEC", "")
        mine = pid is None or pid == str(os.getpid())
        watchdog = int(period) / 1e6 if mine and period.isdecimal() and int(period) else None
        return cls(environment.get("NOTIFY_SOCKET", ""), watchdog)

    def ready(self) -> None:
        """Report that the service is up, or that a reload has ended."""
        self._send("READY=1", _PATIENCE_SECONDS)

    def reloading(self) -> None:
        """Report that a reload has begun; `ready` reports its end."""
        now_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._send(f"RELOADING=1\nMONOTONIC_USEC={now_us}", _PATIENCE_SECONDS)

    def stopping(self) -> None:
        """Report that the service is about to end."""
        self._send("STOPPING=1", _PATIENCE_SECONDS)

    def alive(self) -> None:
        """Send a sign of life to the watchdog."""
        if self.watchdog_seconds is not None:
            self._send("WATCHDOG=1")

    def status(self, text: str) -> None:
        """Set the status line of the service, if it changed."""
        if text != self._status:
            self._status = text
            self._send("STATUS=" + " ".join(text.split()))

    def _send(self, message: str, patience_seconds: float = 0.0) -> None:
        if not self._address:
            return
        try:
            with socket.socket(
                socket.AF_UNIX, socket.SOCK_DGRAM | getattr(socket, "SOCK_CLOEXEC", 0)
            ) as peer:
                # A manager that does not read must not delay the passes; the socket buffers about ten messages.
                peer.settimeout(patience_seconds)
                peer.sendto(message.encode(), self._address)
        except OSError as error:
            log.debug("%s did not take %s: %s", self._address, message.partition("=")[0], error)
