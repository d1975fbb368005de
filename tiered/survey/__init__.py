"""What each tier holds of one partition.

Other packages import `lag`, `local_segments`, `partition_survey`, `plan_facts`, `published`, `scrub_state` and `tier_extent`.
"""
