"""The console: pages for people at ``/`` and ``/console``, made by requests with the rights of the caller (ADR 0047).

- ``console``: ``Console``, its state in a process; ``rendering``: pages, their headers and errors, static files
- ``sessions``: ``Sessions``, logins of browsers; ``logins``: the pages to log in and out
- ``forms``: forms that change something; ``producing``: a new message; ``resending``: a copy of a message in another topic
- ``resetting``: resets of a group's offsets; ``command_lines``: command lines to copy
- ``exporting``: files of messages; ``following``: streams of new messages; ``masks``: hidden fields
- ``overview``, ``topics``, ``messages``, ``groups``, ``brokers``, ``store``: pages
- ``schemas``, ``transactions``, ``rules``, ``users``, ``cost``: pages
- ``asking``: requests to brokers; ``reading``: records for a page; ``decoding``: keys and values decoded by schemas
- ``formats``, ``timeline``, ``differences``: texts and drawings (pure)

``templates/`` has the HTML, ``assets/`` the style sheet, the script and the icon.
"""
