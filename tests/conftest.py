"""Fixtures that every test may use: a clock, a store, real S3 endpoints over HTTP, a Spark session."""

from __future__ import annotations

import gc
import logging
import os
import signal
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
import typer.main
import typer.testing
from hypothesis import HealthCheck, settings

import tiered
from tests.support.botocore_models import share_models
from tests.support.budget import LONG_RUN
from tests.support.clock import Clock
from tests.support.moto_server import OneAtATime
from tests.support.paths import ROOT
from tests.support.s3_server import S3Process, s3_process
from tests.support.stores import open_store

MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 2 << 30

# `ci` draws the same examples at every run, so that a failure is of the change and not of the day.
settings.register_profile(
    "ci", max_examples=30, derandomize=True, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile(
    "thorough",
    max_examples=2000,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile(os.environ.get("TIERED_TEST_PROFILE", "ci"))


def pytest_configure() -> None:
    """Let children be interrupted: a shell that runs the tests in the background has SIGINT ignored, for them too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if "TMPDIR" not in os.environ and not LONG_RUN and has_room(MEMORY):
        os.environ["TMPDIR"] = tempfile.tempdir = str(MEMORY)


def has_room(memory: Path) -> bool:
    """Whether tests can keep their files in memory: a fifth of the run was for a disk to sync what is thrown away.

    The long run, the tests of ``tests/warm``, and machines without such room use the disk.
    """
    try:
        found = os.statvfs(memory)
    except OSError:
        return False
    usable = os.access(memory, os.W_OK) and not found.f_flag & os.ST_NOEXEC
    return usable and found.f_bavail * found.f_frsize >= MEMORY_BYTES_MIN


def pytest_collection_finish(session: pytest.Session) -> None:
    """Collect seldom, and never again what is loaded by now: looking at it took a good part of the run."""
    if session.config.getoption("loadgroup", False):
        # As after a pytest that pytest-xdist does not know: each worker would start a JVM of its own.
        lost = [item for item in session.items if item.get_closest_marker("spark") and "@" not in item.nodeid]
        assert not lost, f"pytest-xdist lost the group of {len(lost)} tests"
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 50)


def pytest_unconfigure() -> None:
    """Let libraries that count their objects at exit find none left."""
    gc.unfreeze()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Send tests to one worker that share what is dear to make; these chains first, and of them the longest, Spark's."""
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if "spark" in fixtures or item.get_closest_marker("spark"):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.xdist_group("spark"))
        elif item.path.parent.name == "spark":
            item.add_marker(pytest.mark.xdist_group("spark"))
        elif "zygote" in fixtures:
            item.add_marker(pytest.mark.xdist_group(f"processes of {item.path.parent.name}"))
    items.sort(
        key=lambda item: (
            item.get_closest_marker("spark") is None,
            item.get_closest_marker("xdist_group") is None,
        )
    )


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[tiered.Store]:
    """A store with a bucket in a directory beside it, ``tmp_path / "data"``."""
    with open_store(tmp_path / "data", f"file://{tmp_path}/bucket", clock) as store:
        yield store


@pytest.fixture(scope="session", autouse=True)
def aws_environment() -> Iterator[pytest.MonkeyPatch]:
    """Keep every test away from real accounts, whatever the developer's machine is set up for."""
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("AWS_")]:
            patch.delenv(name)
        patch.setenv("AWS_ACCESS_KEY_ID", "testing")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
        patch.setenv("AWS_REGION", "us-east-1")
        patch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        patch.setenv("AWS_CONFIG_FILE", os.devnull)
        patch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)
        patch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")  # the discard port, until s3_endpoint is used
        # Half a second for each new bucket; tests/cold/object_store/test_probe.py and the contract hold the races.
        patch.setattr("tiered.cold.object_store.probe.RACES", 0)
        share_models()
        yield patch


@pytest.fixture(scope="session", autouse=True)
def one_application() -> Iterator[None]:
    """Let typer make the commands once, not at every call: 25 of them take 50 ms."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(typer.testing, "_get_command", cache(typer.main.get_command))
        yield


@pytest.fixture(scope="session")
def s3_endpoint(aws_environment: pytest.MonkeyPatch) -> Iterator[str]:
    """URL of an S3 server on a random port of this process; ``AWS_ENDPOINT_URL`` is set to it as well."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    server._server.app = OneAtATime(server._server.app)  # type: ignore[union-attr]
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    aws_environment.setenv("AWS_ENDPOINT_URL", url)
    yield url
    server.stop()


@pytest.fixture(scope="session")
def fast_server(aws_environment: pytest.MonkeyPatch) -> Iterator[S3Process]:
    """An S3 server in a process of its own; see `tests.support.fast_endpoint`."""
    with s3_process() as server:
        yield server


@pytest.fixture
def s3_bucket(s3_endpoint: str) -> str:
    """URL of an empty prefix in a bucket of its own; credentials and endpoint are in the environment."""
    import boto3

    name = f"test-{uuid4().hex}"
    boto3.client("s3", endpoint_url=s3_endpoint).create_bucket(Bucket=name)
    return f"s3://{name}/prefix"


@pytest.fixture(scope="session")
def spark(s3_endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """One SparkSession for all tests. Its workers inherit the environment, so the S3 endpoint comes first."""
    pytest.importorskip("pyspark")
    from tiered.spark.session import session

    folder = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patch:
        # For runs without an installation of this checkout.
        patch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])))
        spark = session(
            "tiered-tests",
            **{
                "spark.master": "local[2]",
                "spark.driver.memory": "1g",
                "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
                "spark.sql.shuffle.partitions": 2,
                # Compiling a query takes longer than running it on so few rows.
                "spark.sql.codegen.wholeStage": False,
                "spark.sql.codegen.factoryMode": "NO_CODEGEN",
                "spark.sql.warehouse.dir": str(folder / "warehouse"),
            },
        )
    yield spark
    spark.stop()
