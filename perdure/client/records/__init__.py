"""Records of runs, from their history, their stores and their files.

event_reader  reading the events of a run from its history
export        one run as one record
record        a signed record: its lines, and their check
run_facts     a run's turns and calls, with its questions, collected from its history
"""
