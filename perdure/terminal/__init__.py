"""The terminal: what commands print and ask.

chat_view    its turns, as they are printed
command      what every command has in common: where it prints, how it ends
completion   Shell completion of names: agents, and runs if a server is up. A lookup that takes too long yields …
console      where everything is printed
event_lines  What a happening says to a person, as lines. Pure: who prints them, and where, is `terminal`'s
follow       following a run to its end; report: tables and pages
free_text    commands whose text may begin with "-"
goal_input   one that is too long for a conversation
live_area    The lines at the bottom of a terminal that change while a run goes on. What is printed meanwhile goes …
progress     How a run stands, as far as its happenings tell: counts for the last line, and what the live area shows
prompt       A run's question at the terminal: shown whole, and what a person types becomes the answer they meant
report       Runs and tools as tables and pages in the terminal, and the same as JSON rows
run_view     a run on a screen; lines: what a happening says; asking: its questions; area and progress: what changes
table        the list
"""
