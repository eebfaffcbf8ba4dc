"""Evaluation of trained models: latents, probes and heads."""
