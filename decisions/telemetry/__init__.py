"""Metrics, spans and exports: what each one contains.

export   what a run's events tell of its turns, calls and questions
metrics  what is counted of runs, and under which names
spans    what a span says of a run, an attempt, an event
"""
