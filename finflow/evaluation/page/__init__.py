"""Parts that every page is made of: numbers, sections, figures."""
