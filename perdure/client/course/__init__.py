"""The course of a run: its events as what is new, what is open and what closes, for protocols of other front ends.

moves    the moves of a course
stretch  a run followed to its end, or to its next question
walk     the walk over a run's events
"""
