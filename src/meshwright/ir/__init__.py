"""The stage graph and the compute algebra: plain frozen data, serialisable, printable."""
