"""The live table: a topic as an Iceberg table that names the topic's objects, and whose metadata lies in the topic's folder.

Other packages import `data_files`, `glue`, `iceberg_errors`, `live_table`, `schema`, `summary_offsets`, `table_folder`,
`table_info`, `table_manifests`, `table_reader`, `table_sql`, `table_sweep` and `table_version`.
"""
