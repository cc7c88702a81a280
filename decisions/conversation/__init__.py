"""Lanes: which requests are accepted, and in which order they become turns.

lane      a lane: which requests it takes, and in which order they become turns
omission  what of a conversation is left out: turns without an answer, and those that a person took out
rules     what a lane does next, by rules in their order
view      what people read of a lane
"""
