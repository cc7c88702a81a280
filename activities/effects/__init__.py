"""Side effects: attempts, heartbeats, and the ledger that keeps `once` calls from repeating.

attempts  attempts and heartbeats of activities
ledger    the ledger of `once` calls
"""
