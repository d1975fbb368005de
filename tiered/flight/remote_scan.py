"""The documented name of `client.remote_scan.read_remote_split`."""

from .client.remote_scan import read_remote_split

__all__ = ["read_remote_split"]
