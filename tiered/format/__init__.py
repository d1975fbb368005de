"""The format, pure: schemas, blocks, segments and manifests as bytes. No I/O, no clock.

Specified with byte tables in ``docs/format.md``.

Other packages import `arrow_layouts`, `block`, `block_pieces`, `checksum`, `codec`, `compare`, `document`,
`ipc_message`, `lineages`, `manifest`, `manifest_changes`, `manifest_checks`, `manifest_codec`, `producers`, `record`,
`schema`, `segment`, `segment_facts`, `single_record`, `sizes`, `timestamps` and `topic_meta`.
"""
