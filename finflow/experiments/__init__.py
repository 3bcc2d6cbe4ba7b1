"""Many trainings: what a claim about the agent rests on."""
