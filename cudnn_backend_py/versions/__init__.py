"""cuDNN versions next to each other in a private cache: install, list, find, verify, remove."""

from .store import *  # noqa: F403
