"""Pure tensor functions: each operation as readable torch and, where speed is the point, as a Triton kernel."""
