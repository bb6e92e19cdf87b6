"""The operating system: child processes, private folders, untrusted files."""
