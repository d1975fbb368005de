"""What a directory is mounted from: a store's locks and syncs need a file system of this machine."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from ..errors import ConfigError

# Linux says what is mounted; other systems have no such file, and are not asked.
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
    """Raise `ConfigError` where a directory, there or to be made, lies on a network file system that tells so."""
    kind = file_system(root)
    family, _, program = kind.partition(".")
    if family in _NETWORK or (family == "fuse" and program in _FUSE):
        raise ConfigError(
            f"{root} lies on a network file system ({kind}), whose locks and syncs need not hold: keep the store on a "
            "local disk, and its copy in a bucket"
        )


def file_system(path: Path) -> str:
    """Return the type of the file system that a path lies on, as Linux calls it; empty where that is not known."""
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
