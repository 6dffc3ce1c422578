"""What a graph means: one walk over it, with the arithmetic passed in."""
