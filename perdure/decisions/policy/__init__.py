"""The policy of a project: rules over calls. Only activities and commands evaluate them.

facts  the facts that expressions see
rules  parsing of `policy.toml`, the rule that decides, and the stricter of two verdicts
"""
