"""Keys and values of earlier tokens: where they live, who shares them, and attention over them."""
