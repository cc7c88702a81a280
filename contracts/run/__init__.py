"""A run: its state, its limits, its transcript, and what enters and leaves it.

compaction      how full the window is, and what stands for old messages
events          the agentic.* events, field for field as their source has them
export          one run as one record, for an audit
journal         the eight sections of the run journal
limits          steps, turns, reframes, time, budgets
loop_detection  the latest calls of a run, and what was seen in them
question        the one open question of a run
signals         what people send to a run: answers and cancel requests
state           a run's state, and the view of it that `state` answers
transcript      parts, cursor, page, segment: the conversation by reference
turn            one model call: request and reply
"""
