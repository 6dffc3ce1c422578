"""Number formats, to the bit: MXFP7 blocks, the FP22 accumulator, their product, vector lanes."""
