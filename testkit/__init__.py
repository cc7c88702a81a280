"""For those who test their agents: fakes that speak the real protocols.

model_server  a scripted Messages API server on loopback
"""
