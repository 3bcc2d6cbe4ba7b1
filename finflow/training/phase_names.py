"""Names of the two phases of a training, as checkpoints, logs and `worlds.phases` have them."""

from __future__ import annotations

OFFLINE, ONLINE = "offline", "online"
