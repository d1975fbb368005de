"""The documented name of what `client.remote_scan` offers to others."""

from .client.remote_scan import read_remote_split

__all__ = ["read_remote_split"]
