"""What is read from a trained model: latents, probes, heads."""
