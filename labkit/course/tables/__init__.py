"""The course's tables that set measurements beside records and claims, one module a notebook."""
