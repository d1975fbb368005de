"""Other stores that do the same work, laid out as their own guides advise.

`embedded` has SQLite and LMDB, `tables` Delta, Iceberg and Lance, `rivven` a log in Rust, `kafka` Apache Kafka.
"""

from __future__ import annotations

from pathlib import Path

BUILD = Path(__file__).resolve().parents[2] / "build" / "peers"
"""Where peers that need a toolchain are built, once."""


class MissingPeerError(Exception):
    """A peer cannot run on this machine; the message says what it needs."""
