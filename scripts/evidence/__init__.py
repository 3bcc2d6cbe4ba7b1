"""Evidence about finflow that takes long to make: `make evidence`."""
