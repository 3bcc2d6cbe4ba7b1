"""Learning algorithms: behaviour cloning, IQL, TD3+BC, and the B-Cell online."""
