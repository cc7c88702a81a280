"""`Notify` and `Inbound`: notices to people, and events of theirs that begin work.

announce  the start of a notice by a run
inbound   `Inbound`: an event, the work that it begins, and the answer
notify    `Notify`: a notice, and its retries
"""
