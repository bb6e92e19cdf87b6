"""What the site is made with: MkDocs asks :mod:`.hooks`; the pages are under ``docs/``."""
