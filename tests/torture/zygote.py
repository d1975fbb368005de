"""The zygote of the roles of this folder."""

from __future__ import annotations

from tests.support import zygote
from tests.torture.roles import ROLES

if __name__ == "__main__":
    zygote.main(ROLES)
