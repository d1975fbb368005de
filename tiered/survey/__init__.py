"""The survey of one partition: the records, files and objects of each tier.

Other packages import `erasure_places`, `lag`, `local_segments`, `partition_survey`, `plan_facts`, `published_manifest`, `scrub_state` and `tier_extent`.
"""
