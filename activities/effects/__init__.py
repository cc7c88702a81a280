"""Side effects: attempts, heartbeats, holds, and the ledger that keeps `once` calls from repeating.

attempts  attempts and heartbeats of activities
held      activities that wait on the server, paused: find and release them
holding   an activity that must not go on pauses itself
ledger    the ledger of `once` calls
places    the interface to places, which limit how much is at work at once
"""
