"""The format, pure: schemas, blocks, segments and manifests as bytes. No I/O, no clock.

Specified with byte tables in ``docs/format.md``.
"""
