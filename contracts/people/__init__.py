"""People around a run: their notices, the events of theirs that begin work, and the policy that asks them.

inbound  an event that begins a run or a turn
notice   a notice, and the channels that it goes to
policy   the rules of a policy, and its verdict on a call
rubric   conditions of people in words, by which a model judges
"""
