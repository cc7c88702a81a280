"""A run: its next move, and the state after each move.

call_state      what becomes of a call: pending, approved, made again, settled
calls           a reply of the model -> the calls it asks for, in batches
compaction      what of a long conversation the model is shown, and how full its window is
journal         the run journal: written by its tools, shown whole or as a digest
limits          which limit is in force, and which is used up
loop            the run's state machine: the rules of what to do next, in their order
loop_detection  does the run go in circles, and what is done about it
outcome         how a run ends, and how that is told: completion and escalation events, hand-off
question        which answers a question takes
recovery        what is done about a full window, rung by rung
reply           a reply of the model -> what it makes of the run
resume          how a run goes on from another one
tool_results    what a `tool_result` means to this run (A5)
transcript      the conversation as a hash chain of parts
"""
