"""What each tier holds of one partition.

Other packages import `local_segments`, `partition_survey`, `published` and `scrub_state`.
"""
