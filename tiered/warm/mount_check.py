"""The check that a store lies on a local file system, which its locks and syncs need."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from ..errors import ConfigError

# The list of mounts on Linux. Other systems have no such file, and the check is skipped.
MOUNTS = Path("/proc/self/mountinfo")
_NETWORK = frozenset(
    {"afs", "beegfs", "ceph", "cifs", "davfs", "glusterfs", "gpfs", "lustre", "nfs", "nfs4", "smb3", "smbfs"}
)
_FUSE = frozenset(
    {
        "ceph",
        "davfs",
        "gcsfuse",
        "glusterfs",
        "goofys",
        "juicefs",
        "mount-s3",
        "rclone",
        "s3fs",
        "smbnetfs",
        "sshfs",
    }
)


def check_local(root: Path) -> None:
    """Raise `ConfigError` if a directory, existing or not, lies on a known network file system."""
    kind = file_system(root)
    family, _, program = kind.partition(".")
    if family in _NETWORK or (family == "fuse" and program in _FUSE):
        raise ConfigError(
            f"{root} lies on a network file system ({kind}), whose locks and syncs need not hold: keep the store on a "
            "local disk, and its copy in a bucket"
        )


def file_system(path: Path) -> str:
    """Return Linux's name for the type of a path's file system; empty if it is unknown."""
    with suppress(OSError):
        while not path.exists() and path != path.parent:
            path = path.parent
        device = path.stat().st_dev
        number = f"{os.major(device)}:{os.minor(device)}"
        for line in MOUNTS.read_text(errors="replace").splitlines():
            fields, _, source = line.partition(" - ")
            if fields.split()[2:3] == [number]:
                return source.partition(" ")[0]
    return ""
