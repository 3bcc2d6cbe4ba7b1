"""What a trade does to money."""
