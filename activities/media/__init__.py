"""Images and PDF: their check, their storage, and their way into a request.

check  the type, size and pages of a file, by its content
pages  the program that counts the pages of a PDF
store  media under the hash of their bytes
"""
