"""Follow-ups and topics: their tasks, by kind, and the events that resolve them.

kinds  the table of task kinds: their inputs, and what resolves each
state  a follow-up's state machine: when its tasks are resolved, and when the work resumes
tools  calls of the `workflow_*` tools as the source's commands
topic  a topic: the events and subscriptions it stores, its deliveries, its end
view   lifecycle events, the request that resumes the work, and the text that people read
"""
