"""Side effects: attempts, heartbeats, holds, and the ledger that keeps `once` calls from repeating.

attempts  attempts and heartbeats of activities
holding   activities that wait on the server, paused, until they are released
ledger    the ledger of `once` calls
"""
