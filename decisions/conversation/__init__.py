"""Lanes: which requests are accepted, and in which order they become turns.

lane      the state of a lane: accepted requests, in the order in which they become turns
omission  the parts of a conversation that the model no longer sees: unanswered turns, and those a person removed
rules     the lane's next move: an ordered table of rules
view      a lane as people read it
"""
