"""Grade learners' notebooks. Verdicts are computed here, in a process that no learner's code ever enters."""
