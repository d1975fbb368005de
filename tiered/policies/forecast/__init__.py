"""The forecast of the rules: what they will do later, and why they do nothing now.

Other packages import `explain` and `simulate`.
"""
