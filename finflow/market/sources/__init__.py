"""Sources of prices: embedded data, files, Yahoo Finance."""
