"""Scripts that write the records in logs/ and the tables of pages; tools/README.md lists the output of each."""
