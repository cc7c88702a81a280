"""A run: its next move, and the state after each move.

call_state      the life of a call: pending, approved, made again, settled
compaction      the part of a long conversation that the model sees, and the size of the window it fills
journal         the run journal: written by its tools, rendered whole or as a digest
limits          the limits in force, and the checks that one is used up
loop            the run's state machine: an ordered table of rules for the next move
loop_detection  detection of unproductive loops, and the response to them
next_calls      the calls of a turn that are made next, and which of them a person must approve first
outcome         the end of a run: completion and escalation events, hand-off
question        the answers that each kind of question accepts
recovery        recovery from a full window, and of a call without an outcome: two tables
reply           the effect of a reply on the run: its calls, in batches, an outcome, or a note
resume          a run that continues another one: resumed or forked
state           the transitions that no rule decides: asked, approved, noted, spent
transcript      the transcript, and what a model no longer gets of it
"""
