"""The embedded S3 server: it is there when it says so, answers as S3 does, and never outlives its starter."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import boto3
import pytest
from botocore.exceptions import ClientError

from tests.support import fork_server
from tests.support.paths import ROOT
from tiered.demo.embedded_s3 import EmbeddedS3, environment
from tiered.errors import ConfigError

STARTER = """
import sys, time
from tiered.demo.embedded_s3 import EmbeddedS3
with EmbeddedS3.start() as s3:
    print(s3.url, s3.pid, flush=True)
    {then}
"""


def alive(pid: int) -> bool:
    """Whether a process is there and is not merely waiting to be reaped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except FileNotFoundError:
        return False


def starter(then: str) -> subprocess.Popen[str]:
    return fork_server.Popen(
        [sys.executable, "-c", STARTER.format(then=then)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


@pytest.mark.extended
def test_it_serves_a_bucket_and_one_of_many_conditional_writes_wins() -> None:
    with EmbeddedS3.start() as s3:
        assert re.fullmatch(r"http://127\.0\.0\.1:\d+", s3.url)
        with environment(s3.environment()):
            s3.create_bucket("demo")
            client = boto3.client("s3")

            def put(text: str) -> bool:
                try:
                    client.put_object(Bucket="demo", Key="k", Body=text, IfNoneMatch="*")
                except ClientError:
                    return False
                return True

            with ThreadPoolExecutor(8) as pool:
                assert sum(pool.map(put, [str(uuid4()) for _ in range(16)])) == 1
        pid = s3.pid
        s3.close()
    assert not alive(pid)


def test_the_environment_is_as_it_was_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside, nothing of the user's own AWS set-up is left."""
    monkeypatch.setenv("AWS_PROFILE", "production")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "real")
    before = dict(os.environ)
    with environment({"AWS_ACCESS_KEY_ID": "demo", "OTHER_SETTING": "1"}):
        assert {name: value for name, value in os.environ.items() if name.startswith("AWS_")} == {
            "AWS_ACCESS_KEY_ID": "demo"
        }
    assert dict(os.environ) == before


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks for processes in /proc")
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_ends_with_its_starter_however_that_ends(number: int) -> None:
    process = starter("time.sleep(60)")
    assert process.stdout is not None
    pid = int(process.stdout.readline().split()[1])
    assert alive(pid)
    process.send_signal(number)
    process.wait(30)
    deadline = time.monotonic() + 30
    while alive(pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_without_moto_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "moto", None)
    with pytest.raises(ConfigError, match=re.escape("pip install 'tiered[server]'")):
        EmbeddedS3.start()


@pytest.mark.extended
def test_a_server_that_does_not_start_says_why(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "werkzeug.py").write_text("raise ImportError('werkzeug is broken')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr("tiered.demo.embedded_s3._child_environment", lambda: dict(os.environ))
    monkeypatch.chdir(ROOT)
    with EmbeddedS3.start() as s3, pytest.raises(ConfigError, match="did not start: .*werkzeug is broken"):
        _ = s3.url
