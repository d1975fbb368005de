"""The format, pure: schemas, blocks, segments and manifests as bytes. No I/O, no clock.

Specified with byte tables in ``docs/format.md``.

Other packages import `arrow_layouts`, `block`, `block_pieces`, `checksum`, `codec`, `compare`, `document`,
`ipc_message`, `lineages`, `manifest`, `manifest_codec`, `producers`, `schema`, `segment`, `segment_facts`,
`single_record`, `sizes` and `topic_meta`.
"""
