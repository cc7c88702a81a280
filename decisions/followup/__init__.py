"""Follow-ups and topics: their tasks, by kind, and the events that resolve them.

kind    the interface of a kind of task
kinds   the table of kinds
notify  `notify`: send one message
prompt  `prompt`: a person answers, by `perdure answer` or in the Web UI
reply   a strict reply to one message, in its channel, by one user if one is named (E3)
state   a follow-up's state machine: when its tasks are resolved, and when the work resumes
tools   calls of the `workflow_*` tools as the source's commands
topic   a topic: the events and subscriptions it stores, its deliveries, its end
view    lifecycle events, the request that resumes the work, and the text that people read
wait    `wait`: until a time, or for a duration
"""
