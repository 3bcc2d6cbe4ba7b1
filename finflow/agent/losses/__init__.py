"""Losses and regularisers as pure functions of tensors."""
