"""Follow-ups: topics, outgoing messages, and the lane that resumes the work.

followup  a follow-up's start, its topics, its messages, and the lane where the work goes on
outbox    the port by which messages go out: a webhook, a log file
topic     how an event, or a task that waits for one, gets to its topic
"""
