"""What the rules will do later, and why they do nothing now.

Other packages import `explain` and `simulate`.
"""
