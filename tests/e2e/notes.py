"""A project with one tool, whose calls a person approves, and a model that has a price."""

PROJECT = """
[tools.note]
kind = "python"
effect = "once"
approval = "always"
target = "notes:note"

[prices.scripted]
input = 3
output = 15
"""
CODE = '''
def note(text: str) -> str:
    """Writes a line down."""
    return f"noted {text}"
'''
