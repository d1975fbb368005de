"""The process that runs passes beside a writer: `service.Daemon` holds it together.

::

    signals ─▶ service ─▶ Passes ─▶ the store's tierer        one thread each for full passes and tails
                 │          │
                 │          └─▶ watched ─▶ health             what was begun, what made progress, who answered
                 ├─▶ logs, notify                             lines on stderr, words for systemd
                 └─▶ web ◀─ health, metrics                   /healthz /readyz /metrics and the page

Other packages import `logs`, `notify` and `service`.
"""

from .service import Daemon

__all__ = ["Daemon"]
