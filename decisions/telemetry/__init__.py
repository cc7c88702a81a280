"""Metrics, spans and exports: what each one contains.

export   a run's turns, calls and questions, folded from its history
metrics  names, labels and buckets of metrics
spans    attributes of spans
"""
