"""The fast table over S3, with the real S3A connector, where its JARs can be resolved."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.paths import ROOT

pytest.importorskip("pyspark")
from tests.spark.stores import Place

PROGRAM = Path(__file__).with_name("s3a_program.py")
# What Ivy says where there is no network, or no such JAR.
_UNRESOLVED = (
    "unresolved dependency",
    "Server access error",
    "UnknownHostException",
    "not found in any repository",
)


@pytest.mark.slow
@pytest.mark.spark
@pytest.mark.timeout(900)
def test_the_fast_table_reads_s3_through_s3a(own_on_s3: Place) -> None:
    """The same rows as the source, objects by the JVM; no secret in a plan. By the bucket alone, nothing in Python.

    The headers lie between columns that every read has: to leave them out costs no request.
    """
    own_on_s3.store.flush()
    large = own_on_s3.store.create_topic("large")
    large.append_many(
        [{"value": random.Random(n).randbytes(100_000), "headers": [("h", b"x")]} for n in range(60)]
    )
    large.publish()
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    }
    command = [sys.executable, "-W", "ignore", str(PROGRAM), own_on_s3.bucket, own_on_s3.path]
    with own_on_s3.store.serve("127.0.0.1:0"):
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=800, check=False
        )
    if done.returncode and any(text in done.stderr for text in _UNRESOLVED):
        pytest.skip("the connector's JARs cannot be resolved here")
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    without, with_headers = found["requests"]
    assert 0 < without == with_headers
    same = {"same": True, "s3a": True, "secret": False}
    assert found["bucket"] == {"rows": 4000, "python": False, **same}
    # What is in no object was read by the call, and is held in files of the session.
    assert found["store"] == {"rows": 8500, "python": False, **same}
    assert found["published"] == {"rows": 8500, "python": False, **same}
