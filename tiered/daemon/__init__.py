"""The daemon: a process that runs passes beside a writer; see `service.Daemon`.

::

    signals ─▶ service ─▶ PassLoop ─▶ the store's tierer      one thread each for full passes and tails
                 │          │
                 │          └─▶ pass_watch ─▶ health          progress of passes, answers of the bucket
                 ├─▶ logs, notify                             lines on stderr, messages to systemd
                 └─▶ http ◀─ health, metrics                  /healthz /readyz /metrics and the page

Other packages import `logs`, `notify` and `service`.
"""
