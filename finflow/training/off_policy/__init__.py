"""The online phase by distributional soft actor-critic: portfolios, learners, and their update."""
