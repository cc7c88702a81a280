"""People: what a run asks them, which answers it takes, what they are notified of, and the work that they begin.

approvals   the open questions about a run's calls, and the effect of their answers
inbound     the goal, conversation and answer of an event
notice      the notices of a run, and the channels that get them
sender      the sender of a message: what is known, what is claimed
signature   the content that a signed answer covers, and the check of its signature
start_rule  a `[[start]]`: the events that it is for
"""
