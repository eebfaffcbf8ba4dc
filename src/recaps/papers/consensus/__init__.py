"""*Learning to compute inner consensus*."""
