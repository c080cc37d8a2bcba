"""The console: pages for people at ``/`` and ``/console``, made by requests with the rights of the caller (ADR 0047).

- ``console``: ``Console``, its state in a process; ``rendering``: pages, their headers and errors, static files
- ``sessions``: ``Sessions``, logins of browsers; ``forms``: forms that change something
- ``asking``: requests to brokers

Folders, each of which imports only from those above it:

- ``texts/``: texts, drawings and runbooks, pure
- ``records/``: records for a page, their texts by schema, and masks
- ``pages/``: pages that show something
- ``acts/``: acts that begin at a page: to produce, resend, reset, export or follow

``templates/`` has the HTML, ``assets/`` the style sheet, the script and the icon.
"""
