"""``spark-submit --py-files``: the package alone is shipped, what it needs is in the environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import tiered
from tests.support.paths import ROOT

pytest.importorskip("pyspark")
import pyspark

from tiered.spark.java import find_java_home

PROGRAM = Path(__file__).with_name("submit_program.py")


@pytest.mark.slow
@pytest.mark.spark
def test_a_zip_of_the_package_is_enough(tmp_path: Path) -> None:
    package = tmp_path / "tiered.zip"
    with zipfile.ZipFile(package, "w") as archive:
        for path in sorted((ROOT / "tiered").rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                archive.write(path, path.relative_to(ROOT))
    with tiered.open(tmp_path / "store", cold=f"file://{tmp_path}/bucket") as store:
        store.create_topic("t").append_many([b"x"] * 100)
    environment = os.environ | {
        "JAVA_HOME": str(find_java_home()),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    submit = str(Path(pyspark.__file__).parent / "bin" / "spark-submit")
    sizes = ["--master", "local[1]", "--driver-memory", "512m", "--conf", "spark.ui.enabled=false"]
    command = [submit, *sizes, "--py-files", str(package), str(PROGRAM), str(tmp_path / "store")]
    done = subprocess.run(command, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["counts"] == [100, 100]
    assert "tiered.zip" in found["driver"]
    assert "tiered.zip" in found["executor"]
