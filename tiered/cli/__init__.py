"""The command ``tiered``.

Most commands have a module of their name. The others:

==================  ==================================================================
`app`               the application: its commands, exit codes, signals
`options`           options that commands share, and opening the store that they name
`output`            tables, JSON, sizes and times for people
`topics`            ``create``, ``topics``
`changes`           ``delete``, ``delete-before``, ``add-columns``, ``add-partitions``, ``roll``
`append`            ``append``; `sources` reads its inputs
`read`              ``read``; `records` prints records, `consumer_pipe` those of ``--group``
`tiering`           ``status``, ``plan``, ``tier``
`pause`             ``pause``, ``resume``
`erase`             ``erase``, ``erasures``
`bench`             ``bench``; `quick_bench` measures
`inspection`        ``inspect``; `describe` and `describe_object` describe files and objects
`deferred_signals`  signals that end a command between two calls
==================  ==================================================================
"""

from .app import app, main

__all__ = ["app", "main"]
