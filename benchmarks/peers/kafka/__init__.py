"""Apache Kafka: one broker in KRaft mode on this host, and librdkafka as its client in Python."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from .. import BUILD, MissingPeerError

VERSION = "4.1.0"
_SOURCE = Path(__file__).resolve().parent
_JARS = BUILD / "kafka"
_START_SECONDS = 60
_CONFIGURATION = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller}
controller.listener.names=CONTROLLER
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller}
log.dirs={folder}/data
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
"""
# As Kafka's own start script has it, with room for 1 GiB of heap.
_JAVA = ("java", "-Xms1g", "-Xmx1g", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20", "-Djava.awt.headless=true")

THROUGHPUT = {"linger.ms": 50, "batch.size": 1 << 20, "batch.num.messages": 100_000}
"""Settings of a producer that is tuned for throughput."""


class Broker:
    """A running broker."""

    def __init__(self, address: str) -> None:
        from confluent_kafka.admin import AdminClient

        self._client = {"bootstrap.servers": address, "log_level": 0}
        self._admin = AdminClient(dict(self._client))
        self._numbers = count()

    def send(self, values: list[bytes], settings: dict[str, Any]) -> float:
        """Return the records a second of sending them one by one to a new topic, until all are acknowledged."""
        producer, topic = self._producer({"queue.buffering.max.kbytes": 1 << 20} | settings)
        start = time.perf_counter()
        for i, value in enumerate(values):
            while True:
                try:
                    producer.produce(topic, value)
                    break
                except BufferError:
                    producer.poll(0.01)
            if i % 1_000 == 0:
                producer.poll(0)
        producer.flush()
        return len(values) / (time.perf_counter() - start)

    def awaited(
        self, value: bytes, calls: int, settings: dict[str, Any], *, synced: bool = False
    ) -> list[float]:
        """Return the microseconds of each send that waits for its acknowledgement."""
        producer, topic = self._producer(
            {"linger.ms": 0} | settings, {"flush.messages": "1"} if synced else {}
        )
        times = []
        for _ in range(calls):
            start = time.perf_counter()
            producer.produce(topic, value)
            producer.flush()
            times.append((time.perf_counter() - start) * 1e6)
        return times

    def _producer(
        self, settings: dict[str, Any], topic_settings: dict[str, str] | None = None
    ) -> tuple[Any, str]:
        """Return a producer that is connected, and a new topic of one partition."""
        from confluent_kafka import Producer
        from confluent_kafka.admin import NewTopic

        topic = f"bench-{next(self._numbers)}"
        (created,) = self._admin.create_topics([NewTopic(topic, 1, 1, config=topic_settings or {})]).values()
        created.result()
        producer = Producer(self._client | settings)
        producer.produce(topic, b"opens the segment")
        producer.flush()
        return producer, topic


@contextmanager
def broker(folder: Path) -> Iterator[Broker]:
    """Run a broker whose data lie in `folder`.

    Raises
    ------
    MissingPeerError
        Java, Maven (it fetches the broker) or the package ``confluent-kafka`` is not installed.
    """
    jars = _jars()
    ports = _free_ports()
    configuration = folder / "server.properties"
    configuration.write_text(
        _CONFIGURATION.format(port=ports[0], controller=ports[1], folder=folder), encoding="utf-8"
    )
    classes = ["-cp", f"{jars}/*"]
    tool = ["kafka.tools.StorageTool", "format", "-t", "MkU3OEVBNTcwNTJENDM2Qk", "-c", str(configuration)]
    subprocess.run(["java", *classes, *tool], check=True, capture_output=True)
    with (folder / "broker.log").open("wb") as log:
        process = subprocess.Popen(
            [*_JAVA, *classes, "kafka.Kafka", str(configuration)], stdout=log, stderr=subprocess.STDOUT
        )
    try:
        _await_port(ports[0], process)
        yield Broker(f"127.0.0.1:{ports[0]}")
    finally:
        process.terminate()
        process.wait()


def _jars() -> Path:
    for tool in ("java", "mvn"):
        if shutil.which(tool) is None:
            raise MissingPeerError(f"Kafka needs Java and Maven; {tool} is not installed")
    try:
        import confluent_kafka  # noqa: F401
    except ImportError:
        raise MissingPeerError("Kafka needs the package confluent-kafka") from None
    if not _JARS.exists():
        scratch = _JARS.with_suffix(".new")
        command = [
            "mvn",
            "--quiet",
            "--batch-mode",
            "dependency:copy-dependencies",
            f"-DoutputDirectory={scratch}",
        ]
        done = subprocess.run(command, cwd=_SOURCE, capture_output=True, text=True, check=False)
        if done.returncode:
            raise MissingPeerError(f"Kafka cannot be fetched: {done.stdout.strip().splitlines()[0]}")
        scratch.rename(_JARS)
    return _JARS


def _free_ports() -> tuple[int, int]:
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        return one.getsockname()[1], other.getsockname()[1]


def _await_port(port: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            time.sleep(0.05)
    raise MissingPeerError(f"Kafka did not start within {_START_SECONDS} s")
