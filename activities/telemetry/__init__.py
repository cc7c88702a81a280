"""Search attributes, metrics, spans, and the trace file.

attributes  the search attributes of runs, by name and type
metrics     what each attempt tells of itself: its step to the log, its figures to the metrics
spans       OpenTelemetry spans: of attempts, events and whole runs
trace       `trace.jsonl`: what a run did, a line each
"""
