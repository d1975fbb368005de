"""What makes moto, a server for tests, answer concurrent requests as S3 does."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterable
from typing import Any


class OneAtATime:
    """WSGI middleware: requests take effect one after the other.

    moto compares an ETag and stores the object without a lock: two of sixteen concurrent conditional
    writes were seen to succeed, and an overwrite to break a concurrent one with a 500. The body is read
    before the lock is taken, so a client that stalls or dies while sending holds up nobody.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if length := int(environ.get("CONTENT_LENGTH") or 0):
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(length))
        with self._lock:
            return list(self._app(environ, start_response))
