"""Commands about people's questions, events and notices.

dead_letters  `list --dead`, `redeliver`
questions     `questions`
"""
