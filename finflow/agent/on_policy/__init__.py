"""Learning from the policy's own decisions: PPO, TRPO, A2C and REINFORCE as configurations of one update."""
