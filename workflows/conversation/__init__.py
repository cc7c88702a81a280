"""`Conversation`: a lane that runs one turn at a time.

context       a lane in a worker's memory
conversation  `Conversation`: a lane, one run at a time
turn          its turns: the start of a turn, the wait for its end, and messages to it and about it
"""
