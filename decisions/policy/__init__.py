"""The policy of a project: rules over calls. Only activities and commands evaluate them.

expression  the expressions of rules, in CEL
facts       the facts that expressions see
rules       parsing of `policy.toml`, the rule that decides, and the stricter of two verdicts
"""
