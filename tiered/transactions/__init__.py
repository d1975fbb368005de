"""Transactions, and their log: the topic `__transactions`, which also holds the positions and sessions of consumers.

Other packages import `commits`, `decision`, `parts`, `positions`, `topic_positions`, `transaction_log` and `transaction_rows`.
"""
