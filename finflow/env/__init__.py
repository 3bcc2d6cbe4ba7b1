"""The decision process, single and batched."""
