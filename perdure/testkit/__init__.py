"""For those who test their agents: fakes that speak the real protocols.

model_server  a scripted Messages API server on loopback
tools         a tool whose behaviour the test writes, and which counts its calls
"""
