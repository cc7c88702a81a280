"""Search attributes, metrics, spans, and the trace file.

attributes  the search attributes of runs, by name and type
metrics     facts of each activity attempt for the log, and its metrics
spans       OpenTelemetry spans of attempts, events and whole runs
trace       `trace.jsonl`: a line per turn, call and event of a run
"""
