"""The world outside the process: child processes, private folders, files of others."""
