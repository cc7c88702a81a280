"""Fakes for tests of agents, with the real protocols.

model_server  a scripted Messages API server on loopback
tools         a scripted tool that records its calls
"""
