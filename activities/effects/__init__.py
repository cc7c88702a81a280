"""Side effects: attempts, heartbeats, and the ledger that keeps `once` calls from repeating.

attempts   heartbeats, counting the attempts of an activity, and detecting a lost worker
beats      when a heartbeat is due, and how long a worker may rely on the last one
ledger     claims and results of `once` calls
once       running a call to completion, within its timeout, at most once
"""
