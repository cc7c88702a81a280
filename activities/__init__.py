"""How: the only I/O. Each activity does one outside thing; its clients are given in.

turn         `plan` and `reflect`: one model call each
model        what they want of a model (messages: the Messages API; model_faults: its failures; model_answer: no stream)
providers    which model answers: the first of the list that can (pace: how fast a provider is asked)
context      `summarize`: what stands for old messages
tool         `call_tool` (effect: how an effect is made whole, in its time, and once)
arguments    what is wrong with a call's arguments, by the schema of its tool
ledger       claims and results of `once` calls
attempts     which attempts of an activity count, and whether the one before was lost with its worker
toolkit      what every tool looks like to it
run          `open_run` and `close_segment`: a run's files and its store
first_run    which run had an id first: a later one has keys of its own
definition   the snapshot of its agent, and how another one differs from it
conversation `join_conversation` and `answer_turn`: what turns of a conversation hand on to each other
             (closed_turn: how one ended, by its history)
with_start   an update of a lane or a mailbox that is opened where there is none (update: one that is answered in time)
standing     `watch_run`: waits for the end of a run that its watcher has no handle for
delegation   `collect` and `find_delegation`: what became of a subtask, or of a whole delegation
inherit      `inherit`: what a resumed or forked run begins with
store        a run's store on a disk (remote_store: on an object store; payload_store: large payloads, there too)
project      what a worker offers: agents, tools, model settings
claude       the Claude models: their windows and prices (price: what a call costs)
snapshot     a run's snapshot, read whole
transcript   the worker's cache of conversations, and how it gets what it misses
attributes   the search attributes of runs, by name and type
observation  what each attempt tells of itself: its step to the log, its figures to the metrics
spans        OpenTelemetry spans: of attempts, events and whole runs
trace        `trace.jsonl`: what a run did, a line each
private      folders and files of this user alone
http_url     a URL from outside, read whole before it is used
workspace    a run's folder, and nothing outside it
content_type the suffix of a file by its content type
secrets      the secrets of the process, and what they look like
redaction    how they are kept from leaving an activity
followup     a follow-up's start, its topics, its messages, and the lane where the work goes on
topic        how an event, or a task that waits for one, gets to its topic
mailbox      `look_at_turns` and `dispatch_mail`: what a mailbox asks the server, and how a subtask gets into one
outcome      how a run has ended, and what it brings: its outcome, and the files that it names
carry        `carry`: what a mailbox orders done in its folder (mail_take: the way of a message into its lane)
mail_folder  that folder: what has come, claims, and where each file goes (beneath: how it is opened safely;
             mail_names: names of files; mail_delivery: what the mailbox is told of one)
mail_message a message as a file, read strictly (mail_inputs: the files that its task needs)
mail_told    what the folder is told of a message (mail_result: what became of its run; mail_pages: `task.md`)
mail_rest    whether a file may still be being written
mail_watch   wakes a bridge when something comes (mail_picks: what a person has picked;
             mail_in_hand: what all that is in hand waits for)
outbox       the port by which messages go out: a webhook, a log file
reconcile    `reconcile`: a look at the runs of a task queue and their stores, which repairs what is safe
             (reconcile_runs, reconcile_stores: what it looks at; reconcile_inquiry: what it asks for that)
response_body  bodies of HTTP responses, decoded under a limit (result_budget: how many large ones at a time)
retry_after  for how long a server asks to be left alone
heartbeat    how an activity says that it is alive

fetch        the tool that fetches pages (guard, addresses: only public ones; webpage: HTML to Markdown)
files        the tools that read, write and list files of the workspace
speaking     whether a tool of this process speaks just now
python_tool, http_tool, signal_tool, queue_tool   the kinds of `perdure.toml`
mcp_tool     the kind `mcp` (mcp_server: where a server is; mcp_connection: the one to it, over mcp_stdio or mcp_http;
             mcp_listing: its tools; mcp_result: what it answers; mcp_lock: `mcp.lock.json`)
rehearsal    the rule-based model (critique: what it writes; page: what it measures; messages_sse: how it is streamed)
"""
