"""The build of the site: MkDocs calls :mod:`.hooks`; the pages are under ``docs/``."""
