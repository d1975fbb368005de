"""The command ``tiered``.

===============  ==========================================================
`app`            the application: its commands, exit codes, signals
`options`        options that commands share, and the store they name
`output`         tables, JSON, sizes and times for people
`topics`         ``create``, ``topics``
`append`         ``append``; what it reads is the business of `sources`
`read`           ``read``; what it prints is the business of `records`
`tiering`        ``status``, ``plan``, ``tier``
`explain`        ``explain``
`pause`          ``pause``, ``resume``
`config`         ``config``
`bench`          ``bench``; what it measures is the business of `quick_bench`
`inspection`     ``inspect``; what it finds is the business of `describe`
`demo`           ``demo``
===============  ==========================================================
"""

from .app import app, main

__all__ = ["app", "main"]
