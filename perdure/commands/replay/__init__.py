"""`perdure replay`: past runs tried with another policy, model or agent.

candidate  the project with another model or agent
columns    the columns: observed, as it was, candidate; their differences
command    the command
play       one play of a recorded run
recording  what the world answered in a recorded run
report     the table and JSON
"""
