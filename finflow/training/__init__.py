"""How one agent learns, from data to report."""
