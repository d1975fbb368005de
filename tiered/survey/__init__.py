"""What each tier holds of one partition.

Other packages import `partition_survey` and `scrub_state`.
"""
