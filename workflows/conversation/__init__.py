"""`Conversation`: a lane that runs one turn at a time.

actions       its messages to its turn and to mailboxes
context       a lane in a worker's memory
conversation  `Conversation`: a lane, one run at a time
turn          its turns: the start of a turn, and the wait for its end
"""
