"""Operating system services: child processes, private folders, reading of untrusted files."""
