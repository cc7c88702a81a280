"""Fakes for tests of agents, with the real protocols.

chat_completions  the Chat Completions API of that server
model_server      a scripted model server on loopback
tools             a scripted tool that records its calls
"""
