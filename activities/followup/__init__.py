"""Follow-ups: topics, outgoing messages, and the lane that resumes the work.

followup  the activities of a follow-up: its start, subscriptions, messages, and the request that resumes the work
outbox    the port for outgoing messages, with a webhook and a log file as adapters
topic     signals to a topic: events and subscriptions
"""
