"""Published tables computed anew with finflow, one command each, beside the figures of the papers."""
