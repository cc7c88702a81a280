"""Search attributes, metrics, spans, and the trace file.

attributes  the search attributes of runs, by name and type
facts       facts of an activity attempt, for the log, metrics and spans
metrics     the metrics of each activity attempt
spans       OpenTelemetry spans of attempts, events and whole runs
trace       `trace.jsonl`: a line per turn, call and event of a run
"""
