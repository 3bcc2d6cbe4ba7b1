"""On-policy training on gymnasium tasks, and its parts for loops of one's own."""
