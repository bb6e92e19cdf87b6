"""What command lines print and take: tables, progress bars, times, commands."""
