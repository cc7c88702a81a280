"""The terminal: what commands print and ask.

chat_view    turns of a chat
command      parts that all commands share: console, arguments, free texts, options, errors and exit codes
completion   shell completion of agents and run ids
console      the console for all output, safe against control characters
event_lines  run events as lines
follow       a run, shown to its end
progress     figures and contents of the live area
prompt       questions and typed answers
report       lists of runs, runs and tools, as text and as JSON rows
run_view     run events and the live area on a screen
"""
