"""`perdure eval`: cases, runs, scores.

cases     The cases of `perdure eval`, read from YAML or JSON Lines. What is wrong with a file becomes one line
evaluate  eval; cases: the files that it reads; scores: what it reports
scores    What `perdure eval` has to tell: pass rates, and what the runs took
"""
