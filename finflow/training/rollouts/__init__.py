"""Rollouts of the policy in several portfolios: in this process or in workers; rewards by the segment."""
