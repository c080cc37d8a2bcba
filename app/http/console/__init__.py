"""The console: pages for people at ``/`` and ``/console``, made from the requests that their reader may send (ADR 0047).

- ``console``: ``Console``, its state in a process; ``rendering``: pages, their headers and errors, static files
- ``sessions``: ``Sessions``, logins of browsers; ``logins``: the pages to log in and out
- ``forms``: forms that change something; ``producing``: a new message; ``resending``: a message of another topic
- ``resetting``: offsets of a group; ``command_lines``: lines to copy
- ``exporting``: files of messages; ``following``: messages as they come; ``masks``: fields that are not shown
- ``overview``, ``topics``, ``messages``, ``groups``, ``brokers``, ``store``: pages
- ``schemas``, ``transactions``, ``rules``, ``users``, ``cost``: pages
- ``asking``: questions to brokers; ``reading``: records for a page; ``decoding``: their texts by schema
- ``formats``, ``timeline``, ``differences``: texts and drawings (pure)

``templates/`` has the HTML, ``assets/`` the style sheet, the script and the icon.
"""
