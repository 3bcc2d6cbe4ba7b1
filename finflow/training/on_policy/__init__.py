"""On-policy training on gymnasium tasks, and its parts for a user's training loop."""
