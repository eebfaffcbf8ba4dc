"""The papers: one module each, its tables, figures and metrics as pure functions of saved results."""
