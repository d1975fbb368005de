"""A session of botocore for each client, as sessions are not thread-safe; made of what they can share.

Reading the description of S3 takes four fifths of the time to connect, and registering the SDK's own handlers half of
the rest. boto3's sessions can share neither.
"""

from __future__ import annotations

import copy
from functools import cache

from botocore.handlers import BUILTIN_HANDLERS
from botocore.hooks import HierarchicalEmitter
from botocore.loaders import create_loader
from botocore.session import Session

_DESCRIPTIONS = create_loader()


def new_session() -> Session:
    """Return a new session, for one client."""
    session = Session(event_hooks=copy.copy(_handlers(len(BUILTIN_HANDLERS))), include_builtin_handlers=False)
    session.register_component("data_loader", _DESCRIPTIONS)
    return session


@cache
def _handlers(count: int) -> HierarchicalEmitter:  # noqa: ARG001 — moto adds handlers when it is imported
    """Return the `count` handlers that each session registers by itself; a caller copies them before it changes them."""
    handlers = HierarchicalEmitter()
    Session(event_hooks=handlers)
    return handlers
