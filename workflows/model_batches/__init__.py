"""Model calls in batches, for all runs of a task queue.

pool  `ModelBatches`: gathers the calls, sends them, and waits for the ends of the batches
"""
