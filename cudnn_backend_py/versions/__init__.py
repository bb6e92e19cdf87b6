"""The version store: install, list, find, verify and remove several cuDNN versions in the user's cache."""

from .store import *  # noqa: F403
