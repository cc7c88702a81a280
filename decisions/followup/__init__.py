"""Follow-ups and topics: their tasks, by kind, and the events that resolve them.

kind    what one is
kinds   the kinds of task
notify  `notify`: one message goes out, and nothing is waited for; with completion "ack" its sending is
prompt  `prompt`: a person answers, by `perdure answer` or in the Web UI
reply   A strict reply to one message, in its channel, by one user if one is named (E3)
state   a follow-up's state machine: when its tasks are resolved, and when the work goes on
tools   the `workflow_*` tools -> the source's commands
topic   what a topic keeps, whom it tells, and when it is over
view    its events, the request that resumes the work, and what people read of it
wait    `wait`: until a time, or for a while
"""
