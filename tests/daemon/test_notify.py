"""What systemd is told."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from tiered.daemon.notify import Notifier


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told_what_it_asks_for(tmp_path: Path, abstract: bool) -> None:
    """Over a socket with a path or an abstract one; the watchdog is patted only where one watches."""
    name = f"@tiered-{tmp_path}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind("\0" + name[1:] if abstract else name)
        manager.settimeout(5)
        notify = Notifier.of({"NOTIFY_SOCKET": name, "WATCHDOG_USEC": "30000000"})
        assert notify.watchdog_seconds == 30
        notify.ready()
        notify.alive()
        for text in ("one\nline", "one\nline", "two"):
            notify.status(text)
        notify.reloading()
        notify.stopping()
        found = [manager.recv(1000).decode() for _ in range(6)]
        assert found[:4] == ["READY=1", "WATCHDOG=1", "STATUS=one line", "STATUS=two"]
        assert found[4].startswith("RELOADING=1\nMONOTONIC_USEC=")
        assert found[5] == "STOPPING=1"
        Notifier(name).alive()  # nobody watches
        Notifier(str(tmp_path / "nobody")).ready()  # nobody listens
        manager.settimeout(0.01)
        with pytest.raises(TimeoutError):
            manager.recv(1000)
    assert Notifier.of({"WATCHDOG_USEC": "1000000", "WATCHDOG_PID": "1"}).watchdog_seconds is None


def test_a_slow_systemd_misses_a_pat_but_no_state(tmp_path: Path) -> None:
    """The system keeps some ten messages for it."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(tmp_path / "notify"))
        manager.settimeout(10)
        notify = Notifier(str(tmp_path / "notify"), 1.0)
        for _ in range(1000):
            notify.alive()
        telling = threading.Thread(target=notify.ready)
        telling.start()
        telling.join(0.1)  # it has nowhere to put it yet
        while manager.recv(1000) != b"READY=1":
            pass
        telling.join()
