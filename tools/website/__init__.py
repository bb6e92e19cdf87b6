"""The build of the site: MkDocs calls :mod:`.hooks`; the pages are in ``docs/``."""
