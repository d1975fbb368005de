"""Movement of data between tiers: passes, actions, claims, the background publisher.

Other packages import `claims`, `deletions`, `erased_rows`, `partition_handle`, `pass_history`, `pass_loop`, `pauses`, `publisher`,
`reports`, `store_survey`, `table_passes`, `tierer` and `tiering_locks`.
"""
