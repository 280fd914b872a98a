"""Many requests in one forward pass: requests, schedulers, sampling and the engine that runs them."""
