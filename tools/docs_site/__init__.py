"""The documentation as a site: the documents of the repository, and reference pages made from the code (ADR 0050).

- ``__main__`` is `make docs`: it writes the sources, has Zensical build the site, and checks the site
- ``pages`` says which document is which page, and rewrites a document for the site. Pure
- ``navigation`` is the order of the pages
- ``reference`` makes pages from the code: settings, commands, HTTP, protocol, errors
- ``checking`` finds broken links, and parts that a page loads from elsewhere
- ``zensical.toml`` has the settings of the generator, without the navigation
"""
