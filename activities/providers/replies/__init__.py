"""Replies of models, of every API: as events or as a whole, in pieces, and put together.

reply   a reply under construction; how a call is bounded, and repeated more leniently
stream  the events of a streamed reply, within bounds
"""
