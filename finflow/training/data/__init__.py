"""Data of one training: prices, features, behaviour data, replay, reward units."""
