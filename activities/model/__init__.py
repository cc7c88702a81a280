"""Model calls: one turn, its conversation and its summaries.

accept            `accept_outcome`: an agent's own check of an outcome
fused_turn        `read_and_reflect`: the reads of a turn and the next model call
summarize         `summarize`: a summary in place of old messages
transcript_cache  the worker's cache of conversations
turn              `plan` and `reflect`: one model call each
"""
