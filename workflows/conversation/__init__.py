"""`Conversation`: a lane that runs one turn at a time.

actions       what it brings to its turn, and tells mailboxes
context       a lane while a worker has it in memory
conversation  `Conversation`: a lane, one run at a time
turn          its turns: how one begins, and is watched to its end
"""
