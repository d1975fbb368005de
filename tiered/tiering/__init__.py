"""Movement of data between tiers: passes, actions, claims, the background publisher.

Other packages import `claims`, `deletions`, `pass_history`, `pass_loop`, `pauses`, `publisher`, `reports`,
`store_survey` and `tierer`.
"""
