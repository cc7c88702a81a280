"""Model calls: one turn, its conversation and its summaries.

fused_turn        `read_and_reflect`: the reads of a turn and the next model call
pieces            a reply that the length limit cut off, joined from its pieces
summarize         `summarize`: a summary in place of old messages
transcript_cache  the worker's cache of conversations
turn              `plan` and `reflect`: one model call each
"""
