"""The agent: networks, losses and learners."""
