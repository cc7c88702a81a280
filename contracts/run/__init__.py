"""A run: its state, its limits, its transcript, and its input and output.

batch           model turns in batches: entries of the pool, and its state
compaction      the model's window and summaries of old messages
evaluation      test cases for agents: goals, expectations and scores
events          the agentic.* events, field for field as in their source
export          one run as one record, for an audit
fused_turn      the reads of a turn and the next model call, in one activity
journal         the eight sections of the run journal
limits          steps, turns, reframes, time, budgets
loop_detection  a run's latest calls, and loops found in them
question        the one open question of a run
signals         messages from people: answers and cancel requests
state           a run's state, and the view that the query `state` returns
transcript      parts, segments and pages: the conversation by reference
turn            one model call: request and reply
"""
