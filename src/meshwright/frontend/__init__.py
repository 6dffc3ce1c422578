"""Models come in here."""
