"""The course machinery: checks and hints, predictions, progress, the ledger, the notebook builder, the grader."""
