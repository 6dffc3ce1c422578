"""The four-mesh FPGA card: its arithmetic, its units and what they hold."""
