"""Reports over many runs: comparisons, studies, protocols, universes."""
