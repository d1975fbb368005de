"""The command ``tiered``.

===============  ==========================================================
`app`            the application: its commands, exit codes, signals
`options`        options that commands share, and opening the store that they name
`output`         tables, JSON, sizes and times for people
`topics`         ``create``, ``topics``
`append`         ``append``; `sources` reads its inputs
`read`           ``read``; `records` prints records
`tiering`        ``status``, ``plan``, ``tier``
`explain`        ``explain``
`pause`          ``pause``, ``resume``
`config`         ``config``
`bench`          ``bench``; `quick_bench` measures
`inspection`     ``inspect``; `describe` and `describe_object` describe files and objects
`demo`           ``demo``
===============  ==========================================================
"""

from .app import app, main

__all__ = ["app", "main"]
