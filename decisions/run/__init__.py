"""A run: its next move, and the state after each move.

call_state      the life of a call: pending, approved, made again, settled
calls           the calls that a model's reply asks for, in batches
compaction      the part of a long conversation that the model sees, and the size of the window it fills
journal         the run journal: written by its tools, rendered whole or as a digest
limits          the limits in force, and the checks that one is used up
loop            the run's state machine: an ordered table of rules for the next move
loop_detection  detection of unproductive loops, and the response to them
outcome         the end of a run: completion and escalation events, hand-off
question        the answers that each kind of question accepts
recovery        the stages of recovery from a full window
reply           the effect of a model's reply on the run
resume          a run that continues another one: resumed or forked
tool_results    the verdict on each `tool_result` (A5)
transcript      the conversation as a hash chain of parts
"""
