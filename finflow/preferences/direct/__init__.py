"""Learning of a policy from pairs without a reward model: densities of segments, DPO and SimPO, and the report."""
