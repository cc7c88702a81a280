"""Model calls: one turn, its conversation and its summaries.

accept            `accept_outcome`: an agent's own check of an outcome
batches           the activities of model turns in batches
fused_turn        `read_and_reflect`: the reads of a turn and the next model call
judge             a model that judges by a rubric, for `accept` and for reviews of calls
pieces            a reply that the length limit cut off, joined from its pieces
summarize         `summarize`: a summary in place of old messages
transcript_cache  the worker's cache of conversations
turn              `plan` and `reflect`: one model call each
"""
