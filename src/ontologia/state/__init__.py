"""State: reconciliation, commits, history, the schema registry and its migrations."""
