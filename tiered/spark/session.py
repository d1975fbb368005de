"""A local SparkSession that works without any set-up."""

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

# Two sessions started at once would undo each other's environment.
_lock = threading.Lock()


def session(app_name: str = "tiered", **config: str | int | bool) -> SparkSession:
    """Return a local SparkSession with settings that suit Arrow data.

    Java is taken from ``JAVA_HOME`` or the ``PATH``, or is brought by the extra ``java``. Python workers
    run this same interpreter, so they can import what this process can. Nothing listens on the network
    but the loopback interface, and the web interface is off.

    As with Spark's own builder, a session that is already running in this process is returned; it takes
    over what of ``config`` can be changed at run time.

    Parameters
    ----------
    app_name
        Name of the application in Spark's logs and web interface.
    **config
        Spark's own settings, which win over the ones made here:
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
        # Not getActiveSession(), which knows only the sessions of the calling thread.
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
    """Return what has to be in the environment while the JVM and Spark's context start."""
    return {
        "JAVA_HOME": str(find_java_home()),
        # Otherwise workers take whatever `python3` comes first on the PATH.
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        # Containers often cannot resolve their own host name, which ends the JVM.
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
        # 20 ms less a task than TCP to the Python workers
        "spark.python.unix.domain.socket.enabled": True,
        "spark.sql.execution.arrow.pyspark.enabled": True,
        "spark.sql.session.timeZone": "UTC",
        # S3A's default since Hadoop 3.4.3 keeps up to 2 GiB of what it has read, however small the heap is.
        "spark.hadoop.fs.s3a.input.stream.type": "classic",
        # One a core: the default of 200 is for a cluster.
        "spark.sql.shuffle.partitions": max(2, cores),
    }


def _text(value: str | int | bool) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


@contextmanager
def _environ(values: dict[str, str]) -> Iterator[None]:
    """Set environment variables for a while; the process has them back as they were."""
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
