"""Why a graph is refused: reasons to a cause, checked by asking about variations."""
