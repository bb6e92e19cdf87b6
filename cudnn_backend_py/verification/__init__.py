"""Does a described GPU answer as the real one does? Three hundred graphs asked both ways, and the answers compared."""
