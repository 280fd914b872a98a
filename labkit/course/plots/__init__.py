"""The course's pictures, one module a notebook. Each function returns a matplotlib Figure."""
