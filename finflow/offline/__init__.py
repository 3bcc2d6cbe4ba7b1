"""What was done before: behaviour data and its datasets."""
