"""The seams to disk and bucket, which say at a chosen step where the process is, stop it there, or end it."""

from __future__ import annotations

import os
import re
import signal
import threading
from collections.abc import Callable
from typing import Any

from tests.support.delegate import Delegate
from tiered.cold.object_store.connect import open_object_store
from tiered.engine.host import Host
from tiered.warm.filesystem import OsFileSystem

_TRACED = {
    "fs": {"create", "write", "sync", "truncate", "rename", "unlink", "sync_directory", "make_directory"},
    "bucket": {"put", "upload", "stat", "get", "list", "delete"},
    "upload": {"commit"},
}


class Steps:
    """Waits for the `count`-th step that matches, and does something there, once.

    A step reads ``before bucket.put 5b…/head.json`` or ``after fs.rename /data/…``.

    Parameters
    ----------
    at
        Regular expression of the step; None: none.
    action
        ``tell`` the test and go on, ``stop`` this process (SIGSTOP), or ``kill`` it.
    """

    def __init__(
        self, tell: Callable[[str], None], at: str | None = None, count: int = 1, action: str = "tell"
    ) -> None:
        self._tell = tell
        self._at = re.compile(at) if at else None
        self._left = count
        self._action = action
        self._lock = threading.Lock()

    def host(self) -> Host:
        """Return a host whose disk and bucket report their steps here."""
        return Host(
            fs=Traced(OsFileSystem(), "fs", self),  # type: ignore[arg-type]
            open_bucket=lambda url, options: Traced(open_object_store(url, options), "bucket", self),  # type: ignore[arg-type,return-value]
        )

    def step(self, name: str) -> None:
        """Look whether this is the step."""
        if self._at is None or not self._at.search(name):
            return
        with self._lock:
            self._left -= 1
            if self._left:
                return
        self._tell("step")
        if self._action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self._action == "stop":
            # To this very thread, which then does not run one instruction more; the others stop with it.
            signal.pthread_kill(threading.get_ident(), signal.SIGSTOP)


class Traced(Delegate):
    """Passes every call on, and reports it before and after."""

    def __init__(self, inner: Any, kind: str, steps: Steps) -> None:
        super().__init__(inner)
        self._kind = kind
        self._steps = steps

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if name not in _TRACED[self._kind]:
            return found

        def call(*arguments: Any, **options: Any) -> Any:
            about = f"{self._kind}.{name} {arguments[0] if arguments else ''}"
            self._steps.step(f"before {about}")
            result = found(*arguments, **options)
            self._steps.step(f"after {about}")
            return Traced(result, "upload", self._steps) if name == "upload" else result

        return call

    def __enter__(self) -> Traced:
        self.inner.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.inner.__exit__(*error)
