"""`perdure eval`.

cases     the test cases, read from YAML or JSON Lines
evaluate  the command: runs of the cases
scores    the report: pass rates and figures
"""
