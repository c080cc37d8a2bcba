"""Pages that show something, and the page to log in.

- ``topic_totals``: lags and costs of topics; ``topic_groups``: the tab of a topic's groups
- ``overview``: the first page and its live numbers
- ``topics``, ``messages``, ``groups``, ``brokers``, ``store``: lists and their details
- ``schemas``, ``transactions``, ``cost``; ``rules``, ``users``: pages about access
- ``runbooks``; ``logins``: the pages to log in and out
"""
