"""Benchmarks: Ontologia beside hand-written sqlite3 code, in one run."""
