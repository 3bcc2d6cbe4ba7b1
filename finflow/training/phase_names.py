"""Names of the two phases of a training, as checkpoints and logs have them."""

from __future__ import annotations

OFFLINE, ONLINE = "offline", "online"
