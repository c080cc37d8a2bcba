"""Acts that begin at a page: forms that change something, files and streams of messages.

- ``producing``: a new message; ``resending``: a copy of a message in another topic
- ``resetting``: resets of a group's offsets
- ``exporting``: files of messages; ``following``: streams of new messages
"""
