"""Proposals for the conservative penalty: portfolios that cover the simplex, drawn once."""

from __future__ import annotations

import numpy as np
import torch
from torch import Generator

from finflow.agent.batch import States, repeat_groups
from finflow.agent.losses.regularisers import CoverageProposals
from finflow.env.coverage import coverage_portfolios, draw_log_gammas

COVERAGE_POOL = 65_536


class CoveragePool:
    """Portfolios that cover the simplex, drawn once, as proposals for CQL."""

    def __init__(self, seed: int, n_weights: int, device: torch.device) -> None:
        rng = np.random.default_rng(np.random.SeedSequence([seed, 6]))
        self.log_gamma = draw_log_gammas(rng, COVERAGE_POOL, n_weights)
        portfolios, log_density = coverage_portfolios(self.log_gamma)
        self.portfolios = torch.from_numpy(portfolios).float().to(device)
        self.log_density = torch.from_numpy(log_density).float().to(device)

    def draw(self, states: States, proposals: int, generator: Generator) -> CoverageProposals:
        """Proposals for a batch of states, of the assets that are listed in each."""
        batch, device = len(states.portfolio), self.portfolios.device
        places = torch.randint(COVERAGE_POOL, (batch, proposals), generator=generator, device=device)
        if states.complete:
            return CoverageProposals(self.portfolios[places], self.log_density[places])
        listed = repeat_groups(states.listed, states).unsqueeze(1).expand(-1, proposals, -1).cpu().numpy()
        drawn = coverage_portfolios(self.log_gamma[places.cpu().numpy()], listed)
        return CoverageProposals(*(torch.from_numpy(part).float().to(device) for part in drawn))
