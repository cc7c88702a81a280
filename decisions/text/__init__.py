"""Text for people, and text of others quoted as data.

formatting    what a person reads: summaries, current details, the state view
plan          The items of a plan, and which of them the run's journal says are done. An item without a tick may be …
quoting       quotes the text of others as data
visible_text  text of models and tools as people read it: nothing in it is hidden
"""
