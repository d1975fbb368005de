"""The transaction log: the topic `__transactions`, which holds the positions and sessions of consumers.

Other packages import `positions` and `transaction_log`.
"""
