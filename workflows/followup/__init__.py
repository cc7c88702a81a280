"""`FollowUp` and `EventTopic`: tasks that wait for outside events.

context   a follow-up while a worker has it in memory
followup  `FollowUp`: tasks that resolve later; then a new request enters a lane
topic     `EventTopic`: where an event and the task that waits for it meet
"""
