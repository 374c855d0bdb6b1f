"""The query language: expressions, plans, builders and the in-process evaluator."""
