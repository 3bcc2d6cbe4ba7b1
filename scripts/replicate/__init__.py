"""Published tables computed anew with finflow, one command each, compared with the figures of the papers."""
