"""Fakes for tests of agents, with the real protocols.

chat_completions  the Chat Completions API of that server
message_batches   its Message Batches API
model_server      a scripted model server on loopback
rules             requests that the real APIs refuse
tools             a scripted tool that records its calls
ways              ways of servers that speak these APIs otherwise
rehearsal/        the model that answers by rule
"""
