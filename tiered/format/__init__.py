"""The format: schemas, blocks, segments and manifests as bytes and values. Pure: no I/O, no clock.

``docs/format.md`` specifies it with byte tables.

Other packages import `arrow_layouts`, `block`, `block_rows`, `checksum`, `codec`, `compare`, `document`, `erasure`,
`horizons`, `ipc_message`, `latest`, `lineages`, `manifest`, `manifest_changes`, `manifest_checks`, `manifest_codec`,
`manifest_columns`, `offset_set`, `predicate`, `producers`, `record`, `row_filter`, `schema`, `segment`, `segment_facts`,
`single_record`, `sizes`, `timestamps` and `topic_meta`.
"""
