"""Training: one loop for all models, and runs that survive being cut."""
