"""Look-ahead audit of any function of a panel."""
