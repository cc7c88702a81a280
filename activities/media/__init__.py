"""Images and PDF: their check, their storage, and their way into a request.

attach   `take_attachments`: the attachments of a message, checked and copied into the run's store
check    the type, size and pages of a file, by its content
fit      images within the limits of a provider
result   files of a tool's result: artifacts, which the model sees if they are images or PDF
store    media under the hash of their bytes
"""
