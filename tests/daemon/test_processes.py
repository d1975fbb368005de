"""A writer and a daemon as two processes: started, stopped and killed in any order."""

from __future__ import annotations

import os
import random
import signal
import socket
import time
from pathlib import Path

import pytest

import tiered
from tests.daemon.site import EAGER, Site
from tests.support.waiting import wait_until
from tiered.cold.object_store.connect import open_object_store


def acknowledged(site: Site) -> dict[int, bytes]:
    """What writers were told is durable, by offset."""
    found: dict[int, bytes] = {}
    for journal in sorted(site.folder.glob("appender-*")):
        for line in journal.read_text().splitlines():
            kind, *words = line.split()
            assert kind == "ack", line
            assert int(words[1]) not in found, "an offset was given twice"
            found[int(words[1])] = words[0].encode()
    return found


def check_all_there(site: Site, source: str | Path) -> None:
    """All that was acknowledged is there, once, at its offset, and nothing else that nobody wrote."""
    with tiered.open(source, read_only=True) as store:
        table = store.topic("t").scan().to_arrow()
    assert table["offset"].to_pylist() == list(range(table.num_rows))
    values = table["value"].to_pylist()
    assert len(set(values)) == len(values)
    for offset, value in acknowledged(site).items():
        assert values[offset] == value


@pytest.mark.parametrize("seed", [1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 12))])
def test_whoever_is_killed_nothing_acknowledged_is_lost(site: Site, seed: int) -> None:
    """kill -9 of either or both, at a moment that nobody chose; restarts in either order."""
    config, dice = site.config(), random.Random(seed)
    daemon = site.start("daemon", config)  # before there is a store
    writer = site.start("appender", config, life=0)
    for life in range(1, 4):
        writer.expect("going")
        time.sleep(dice.random() / 5)
        fallen = ((writer,), (daemon,), (writer, daemon))[(life + seed) % 3]
        for child in dice.sample(fallen, len(fallen)):
            child.kill()
        for child in dice.sample(fallen, len(fallen)):
            if child is daemon:
                daemon = site.start("daemon", config)
            else:
                writer = site.start("appender", config, life=life)
    writer.expect("going")
    writer.kill()
    end = 1 + max(acknowledged(site))
    path = site.folder / "data"

    with tiered.open(path, read_only=True) as store:

        def caught_up() -> bool:
            published = store.status().partitions[0].published_offset
            return published is not None and published >= end

        wait_until(caught_up, "the daemon did not bring it all to the bucket")
    site.stop(daemon)
    check_all_there(site, path)
    check_all_there(site, site.url)


def test_an_idle_writer_s_segment_is_sealed_offloaded_and_evicted(site: Site) -> None:
    """The writer, whose own rules never roll, is asked; it reads on from the bucket, and appends on."""
    rules = {"roll": {"age": "off"}, "compress": "off", "offload": "off"}
    writer = site.start("idler", site.config("writer.toml", rules=rules))
    writer.expect("idle")
    daemon = site.start("daemon", site.config())
    writer.end()
    assert writer.journal.read_text().splitlines() == ["tiers cold", "read True"]
    kinds = [line["action"] for line in site.lines(daemon) if line.get("outcome") == "done"]
    assert {"seal", "evict_local"} < set(kinds)
    site.stop(daemon)


def test_a_second_daemon_takes_over(site: Site) -> None:
    """One works; the other waits, says so, and goes on where the first one died."""
    config = site.config()
    tiered.open(site.folder / "data", cold=site.url).close()
    first = site.start("daemon", config)
    site.said(first, "tiering ")
    second = site.start("daemon", config)
    assert f"process {first.pid}" in site.said(second, "ready to take over")[0]["message"]
    first.kill()
    site.said(second, "tiering ")
    site.stop(second)


def one_segment(site: Site, size: int) -> None:
    """Leave a store behind whose only segment is due for offload."""
    with tiered.open(site.folder / "data", cold=site.url) as store:
        topic = store.create_topic("t")
        topic.append(random.Random(7).randbytes(size), sync=True)
        topic.roll()


def upload_begun(site: Site) -> None:
    """Wait until the partition is claimed, which is what comes before its first upload."""
    bucket = open_object_store(site.url)
    wait_until(lambda: any(info.key.endswith("/head.json") for info in bucket.list("")), "no upload began")
    bucket.close()


def test_sigterm_lets_what_is_under_way_end(site: Site) -> None:
    """An upload that takes a while is published; what was not begun is left."""
    one_segment(site, 600_000)
    rules = {**EAGER, "offload": {"after": "0s", "tail_interval": "off"}}
    daemon = site.start("daemon", site.config(rules=rules, daemon={"upload_bytes_per_second": "300KB"}))
    site.said(daemon, "tiering ")
    upload_begun(site)
    assert site.stop(daemon) < 10
    messages = [line["message"].partition(" done")[0] for line in site.lines(daemon)]
    assert messages.index("SIGTERM") < messages.index("offload t/0 [0, 1)")
    assert messages[-1] == "stopped"
    assert "evict_local t/0 [0, 1)" not in messages


def test_sigterm_leaves_what_does_not_end_in_time(site: Site) -> None:
    """A bucket that takes requests and never answers: the deadline counts, and the exit code is 0 all the same."""
    one_segment(site, 1000)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        config = site.config(cold={"endpoint_url": endpoint}, daemon={"stop_deadline": "200ms"})
        daemon = site.start("daemon", config)
        silent.accept()[0].close()  # the first question is one without patience
        wait_until(lambda: site.lines(daemon), "nothing was logged")
        site.said(daemon, "tiering ")
        silent.settimeout(20)
        peer = silent.accept()[0]
        begun = time.monotonic()
        os.kill(daemon.pid, signal.SIGTERM)
        daemon._zygote.wait(daemon.pid)
        assert daemon._zygote.statuses[daemon.pid] == 0
        assert time.monotonic() - begun < 20  # a request waits 30 s for its answer
        daemon.alive = False
        peer.close()
    assert "leaving behind" in site.lines(daemon)[-1]["message"]
    assert daemon.journal.read_text() == "", "a return would wait for the threads that hang"


@pytest.mark.extended
def test_a_second_signal_ends_it_at_once(site: Site) -> None:
    one_segment(site, 600_000)
    config = site.config(daemon={"upload_bytes_per_second": "20KB", "stop_deadline": "1h"})
    daemon = site.start("daemon", config)
    upload_begun(site)
    os.kill(daemon.pid, signal.SIGTERM)
    site.said(daemon, "stopping")
    os.kill(daemon.pid, signal.SIGINT)
    daemon._zygote.wait(daemon.pid)
    daemon.alive = False
    assert os.waitstatus_to_exitcode(daemon._zygote.statuses[daemon.pid]) == 128 + signal.SIGINT


def test_another_store_in_the_place_of_the_first_is_another_matter(site: Site) -> None:
    """The lock of the first keeps nobody from the second, and what is known of one is false for the other."""
    path = site.folder / "data"
    tiered.open(path, cold=site.url).close()
    daemon = site.start("daemon", site.config())
    site.said(daemon, "tiering ")
    path.rename(site.folder / "moved")
    site.said(daemon, "there is no store at")
    (site.folder / "moved").rename(path)
    wait_until(lambda: len(site.said(daemon, "tiering ")) == 2, "it did not go on")
    site.stop(daemon)
