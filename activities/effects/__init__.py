"""Side effects: attempts, heartbeats, and the ledger that keeps `once` calls from repeating.

attempts   which attempts of an activity count, and whether the one before was lost with its worker
heartbeat  how an activity says that it is alive
ledger     claims and results of `once` calls
once       how an effect is made whole, in its time, and once
"""
