"""The offline and the online phase, and the state that both advance."""
