"""What can be proved of a graph, and the evidence."""
