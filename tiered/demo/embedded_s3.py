"""An S3 server for demos and tests: moto, over HTTP, in a child process.

The child ends with this process, also after a kill: it reads a pipe that closes when this process ends.
"""

from __future__ import annotations

import importlib.util
import io
import logging
import os
import select
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from ..errors import ConfigError

START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 5.0

_READY = "ready "
_NO_PROXY = ("NO_PROXY", "no_proxy")


class EmbeddedS3:
    """A running server; make one with `start`. Also a context manager.

    The data are in the memory of the child and vanish when it stops.
    """

    def __init__(self, process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
        self._process = process
        self._errors = errors
        self._url: str | None = None

    @classmethod
    def start(cls) -> EmbeddedS3:
        """Start a server on a random port of the loopback interface; do not wait until it listens.

        Raises
        ------
        ConfigError
            moto is not installed.
        """
        if any(importlib.util.find_spec(name) is None for name in ("moto", "werkzeug", "flask")):
            raise ConfigError("the embedded S3 server needs moto; run: pip install 'tiered[server]'")
        errors = tempfile.TemporaryFile()  # noqa: SIM115 (closed with the server)
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "tiered.demo.embedded_s3"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            # A new session: Ctrl-C at the terminal must not end it before its clients.
            start_new_session=True,
            env=_child_environment(),
        )
        return cls(process, errors)

    @property
    def url(self) -> str:
        """``http://127.0.0.1:port``; waits until the server listens there.

        Raises
        ------
        ConfigError
            The server did not start; the message has the reason.
        """
        if self._url is None:
            self._url = self._wait_ready()
        return self._url

    @property
    def pid(self) -> int:
        """Process id of the server."""
        return self._process.pid

    def _wait_ready(self) -> str:
        stdout = self._process.stdout
        assert stdout is not None
        readable, _, _ = select.select([stdout], [], [], START_SECONDS_MAX)
        line = stdout.readline().decode() if readable else ""
        if not line.startswith(_READY):
            self.close()
            self._errors.seek(0)
            reason = self._errors.read().decode(errors="replace").strip().splitlines()
            raise ConfigError(
                f"the embedded S3 server did not start: {reason[-1] if reason else 'no error message'}"
            )
        return line.removeprefix(_READY).strip()

    def environment(self) -> dict[str, str]:
        """Return the environment variables for clients of this server: credentials, region, endpoint."""
        return {
            "AWS_ACCESS_KEY_ID": "demo",
            "AWS_SECRET_ACCESS_KEY": "demo",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.url,
            # The user's own configuration must not send demo data to a real account.
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
            **{name: ",".join(filter(None, [os.environ.get(name), "127.0.0.1"])) for name in _NO_PROXY},
        }

    def create_bucket(self, name: str) -> None:
        """Create a bucket; the variables of `environment` must be set."""
        import boto3

        client = boto3.client("s3", endpoint_url=self.url)
        try:
            client.create_bucket(Bucket=name)
        finally:
            client.close()

    def close(self) -> None:
        """Stop the server; may be called twice."""
        process = self._process
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                pipe.close()
        try:
            process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def __enter__(self) -> EmbeddedS3:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
        self._errors.close()


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables and remove all other ``AWS_`` variables until the block ends."""
    names = {*values, *(name for name in os.environ if name.startswith("AWS_"))}
    before = {name: os.environ.pop(name, None) for name in names}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            if value is not None:
                os.environ[name] = value


def _child_environment() -> dict[str, str]:
    """Return the environment of the child, in which it finds this package, installed or not."""
    folder = str(Path(__file__).resolve().parent.parent.parent)
    path = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}


class _OneAtATime:
    """WSGI middleware that handles one request at a time.

    moto compares an ETag and stores the object without a lock, so two concurrent conditional writes could both succeed.
    The body is read before the lock is taken, so that a client that stalls while sending does not block others.
    """

    def __init__(self, app: Any) -> None:
        self._app = app
        self._lock = threading.Lock()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if length := int(environ.get("CONTENT_LENGTH") or 0):
            environ["wsgi.input"] = io.BytesIO(environ["wsgi.input"].read(length))
        with self._lock:
            return list(self._app(environ, start_response))


def _serve() -> None:
    """Serve on a random port until standard input ends."""
    from moto.moto_server.werkzeug_app import (
        DomainDispatcherApplication,
        MotoRequestHandler,
        create_backend_app,
    )
    from werkzeug.serving import make_server

    logging.disable(logging.CRITICAL)
    app = _OneAtATime(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=MotoRequestHandler)
    server.daemon_threads = True  # type: ignore[attr-defined]
    threading.Thread(target=server.serve_forever, daemon=True).start()
    # The socket listens already, so a client that reads this line can connect.
    sys.stdout.write(f"{_READY}http://127.0.0.1:{server.server_port}\n")
    sys.stdout.flush()
    sys.stdin.buffer.read()
    server.shutdown()


if __name__ == "__main__":
    _serve()
