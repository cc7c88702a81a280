"""`FollowUp` and `EventTopic`: tasks that wait for outside events.

context   a follow-up in a worker's memory
followup  `FollowUp`: tasks that resolve later; then a new request enters a lane
topic     `EventTopic`: matches events with the tasks that wait for them
"""
