"""An S3 server for demos and tests: moto, over real HTTP, in a child process of its own.

The child ends when this process does, however that ends: it watches a pipe whose other end closes with us.
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
    """A running server, made by `start`; also a context manager.

    Data live in the child's memory and are gone when it stops.
    """

    def __init__(self, process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
        self._process = process
        self._errors = errors
        self._url: str | None = None

    @classmethod
    def start(cls) -> EmbeddedS3:
        """Start a server on a random port of the loopback interface, without waiting for it.

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
            # A Ctrl-C at the terminal must not end it before its clients are done.
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
            It did not start; the message says why.
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
                f"the embedded S3 server did not start: {reason[-1] if reason else 'it says nothing'}"
            )
        return line.removeprefix(_READY).strip()

    def environment(self) -> dict[str, str]:
        """Return what clients of this server need in their environment: credentials, region, endpoint."""
        return {
            "AWS_ACCESS_KEY_ID": "demo",
            "AWS_SECRET_ACCESS_KEY": "demo",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.url,
            # Nothing of the user's own set-up may send demo data to a real account.
            "AWS_CONFIG_FILE": os.devnull,
            "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            "AWS_EC2_METADATA_DISABLED": "true",
            **{name: ",".join(filter(None, [os.environ.get(name), "127.0.0.1"])) for name in _NO_PROXY},
        }

    def create_bucket(self, name: str) -> None:
        """Create a bucket; the environment must be `environment`'s."""
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
    """Set environment variables for a while, with every other ``AWS_`` variable taken out."""
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
    """Return the environment of the child, which must find this very package, installed or not."""
    folder = str(Path(__file__).resolve().parent.parent.parent)
    path = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path}


class _OneAtATime:
    """WSGI middleware: requests take effect one after the other.

    moto compares an ETag and stores the object without a lock, so two concurrent conditional writes can both
    succeed. The body is read before the lock is taken: a client that stalls while sending holds up nobody.
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
    # The socket listens already, so whoever reads this line can connect.
    sys.stdout.write(f"{_READY}http://127.0.0.1:{server.server_port}\n")
    sys.stdout.flush()
    sys.stdin.buffer.read()
    server.shutdown()


if __name__ == "__main__":
    _serve()
