"""What decides: networks, policy, critics and losses."""
