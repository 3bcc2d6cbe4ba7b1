"""Look-ahead audit of a whole configuration."""
