"""Scripts that write the records under logs/ and the tables of pages; README.md of tools/ has the output of each."""
