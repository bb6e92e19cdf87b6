"""cuDNN versions side by side in a private cache: install, list, find, verify, remove."""

from .store import *  # noqa: F403
