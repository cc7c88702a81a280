"""`perdure eval`.

cases     the test cases, read from YAML or JSON Lines
evaluate  the command: runs of the cases
facts     the facts of a run that an expectation is checked against
golden    `--from-runs`: cases made from past runs
scores    the report: pass rates and figures
"""
