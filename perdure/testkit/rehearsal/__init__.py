"""The rehearsal model: a rule-based stand-in for a provider.

model   The rule-based model
page    A fetched page in measurable parts
review  The critique or report of pages
sse     Validation and streaming as in the Messages API
"""
