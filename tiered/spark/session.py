"""A local SparkSession that needs no set-up."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..errors import ConfigError
from .java import find_java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Two sessions that start at once would overwrite each other's environment variables.
_lock = threading.Lock()


def session(app_name: str = "tiered", **config: str | int | bool) -> SparkSession:
    """Return a local SparkSession with settings that suit Arrow data.

    Java comes from ``JAVA_HOME``, from the ``PATH`` or from the extra ``java``. Python workers run the interpreter of
    this process, so they can import the same modules. Spark listens on the loopback interface only, and its web
    interface is off.

    If a session runs in this process already, this returns it, as Spark's own builder does. Those settings of
    ``config`` that can change at run time apply to it.

    Parameters
    ----------
    app_name
        Name of the application in Spark's logs and web interface.
    **config
        Spark's own settings, which win over those of this function:
        ``session(**{"spark.master": "local[2]", "spark.driver.memory": "8g"})``.

    Raises
    ------
    ConfigError
        PySpark or Java is missing, or Spark did not start; the message says what to do.

    Examples
    --------
    >>> spark = session()  # doctest: +SKIP
    >>> spark.read.format("tiered").option("topic", "orders").load("s3://bucket/prefix")  # doctest: +SKIP
    """
    try:
        from py4j.protocol import Py4JError
        from pyspark import SparkContext
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ConfigError("PySpark is not installed; run: pip install 'tiered[spark]'") from error

    with _lock:
        # getActiveSession() knows only the sessions of the calling thread.
        running = SparkContext._active_spark_context is not None
        builder = SparkSession.builder.appName(app_name)
        for name, value in (config if running else {**_defaults(), **config}).items():
            builder = builder.config(name, _text(value))
        with _environ({} if running else _environment()):
            try:
                return builder.getOrCreate()
            except (PySparkException, Py4JError) as error:
                reason = str(error).partition("\n\tat ")[0]
                raise ConfigError(f"Spark did not start: {reason}") from error


def _environment() -> dict[str, str]:
    """Return the environment variables for the start of the JVM and of Spark's context."""
    return {
        "JAVA_HOME": str(find_java_home()),
        # Otherwise workers run the first `python3` on the PATH.
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # A container often cannot resolve its own host name, and the JVM then exits.
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_LOCAL_HOSTNAME": "localhost",
    }


def _defaults() -> dict[str, str | int | bool]:
    cores = os.cpu_count() or 1
    return {
        "spark.master": "local[*]",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "2g",
        "spark.log.level": "ERROR",
        "spark.ui.enabled": False,
        "spark.ui.showConsoleProgress": False,
        # Saves 20 ms a task over TCP to the Python workers.
        "spark.python.unix.domain.socket.enabled": True,
        "spark.sql.execution.arrow.pyspark.enabled": True,
        "spark.sql.session.timeZone": "UTC",
        # The default stream of S3A since Hadoop 3.4.3 caches up to 2 GiB, however small the heap is.
        "spark.hadoop.fs.s3a.input.stream.type": "classic",
        # One a core. Spark's default of 200 suits a cluster.
        "spark.sql.shuffle.partitions": max(2, cores),
    }


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@contextmanager
def _environ(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables, and restore their old values at the end of the context."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value
