"""Text for people, and text of others quoted as data.

media         images and PDF: their blocks, their text, and their tokens
formatting    text about a run: summaries, current details, the state view
visible_text  text of models and tools, rendered for people with nothing hidden in it
"""
