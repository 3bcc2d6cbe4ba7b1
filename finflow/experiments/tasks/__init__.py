"""Independent tasks in this process, in local processes, or on a Ray cluster."""
